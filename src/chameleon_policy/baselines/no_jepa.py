"""Ablation: Chameleon trained by the action loss alone (prospectiveness)."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from chameleon_policy.policy import ChameleonPolicy
from chameleon_policy.policy.visuomotor import Remembered, Terms


class NoJepaPolicy(ChameleonPolicy):
    """The same policy without its training branch."""

    method: ClassVar[str] = "no-jepa"
    training_only: ClassVar[tuple[str, ...]] = ()

    def add_training_branch(self) -> None:
        """Do nothing: this method has no training branch."""

    def update_target(self) -> None:
        """Do nothing: this method has no target."""

    def _auxiliary(self, remembered: Remembered, valid: Tensor) -> Terms:
        return Terms()
