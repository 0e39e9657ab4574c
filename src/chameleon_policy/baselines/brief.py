"""Ablation beyond the paper: Chameleon whose working state does not last, so that traces alone
remember.
"""

from __future__ import annotations

from typing import ClassVar

from chameleon_policy.baselines.no_memory import ForgetfulSSM
from chameleon_policy.policy import ChameleonPolicy
from chameleon_policy.policy.memory import MemoryLayer


class BriefPolicy(ChameleonPolicy):
    """Its fast layer (Eq. 10) meets an empty state at every step: h_t follows from this moment's
    recall alone.
    """

    method: ClassVar[str] = "brief"
    has_working_state: ClassVar[bool] = False

    def _make_layer(self) -> MemoryLayer:
        return MemoryLayer(self.config, fast=ForgetfulSSM)
