"""Ablation (not in the paper): the working state does not last, so only traces remember."""

from __future__ import annotations

from typing import ClassVar

from chameleon_policy.baselines.no_memory import ForgetfulSSM
from chameleon_policy.policy import ChameleonPolicy
from chameleon_policy.policy.memory import MemoryLayer


class BriefPolicy(ChameleonPolicy):
    """Chameleon whose fast layer (Eq. 10) starts from an empty state at every step."""

    method: ClassVar[str] = "brief"
    has_working_state: ClassVar[bool] = False

    def _make_layer(self) -> MemoryLayer:
        return MemoryLayer(self.config, fast=ForgetfulSSM)
