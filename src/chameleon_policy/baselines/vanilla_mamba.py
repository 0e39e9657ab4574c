"""Ablation: one recurrent state for the whole scene replaces the traces (separability)."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from chameleon_policy.policy import ChameleonPolicy
from chameleon_policy.policy.memory import MemoryLayer, TracePropagation, TraceState


class PooledPropagation(TracePropagation):
    """E_t = SSM_slow(mean of Z-bar_t): the same SSM runs over one pooled token."""

    def forward(
        self, bound: Tensor, state: TraceState | None, *, keep_state: bool
    ) -> tuple[Tensor, TraceState | None]:
        """Propagate bound tokens (B T N D) as one trace (B T 1 D)."""
        return super().forward(bound.mean(2, keepdim=True), state, keep_state=keep_state)

    def initial_state(self, batch_size: int, tokens: int) -> TraceState:
        """Make the state of a single stream."""
        return super().initial_state(batch_size, 1)


class VanillaMambaPolicy(ChameleonPolicy):
    """Chameleon with one pooled trace and the same number of parameters."""

    method: ClassVar[str] = "vanilla-mamba"

    def _make_layer(self) -> MemoryLayer:
        layer = super()._make_layer()
        layer.propagation = PooledPropagation(self.config)
        return layer
