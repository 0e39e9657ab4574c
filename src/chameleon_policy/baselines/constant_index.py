"""Ablation: a learned constant replaces the control index (addressability).

One of two readings of the paper's "w/o control index". The constant still attends to the scene, so
recall still follows what is seen now; `undirected` is the other reading.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from chameleon_policy.policy import ChameleonPolicy
from chameleon_policy.policy.memory import MemoryLayer


class ConstantIndex(nn.Module):
    """A learned constant c in place of c_t = f_c([p-bar_t, q-bar_t]), Eq. 7."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.randn(width))

    def forward(self, body_and_instruction: Tensor) -> Tensor:
        """Return the same query (... D) for every input (... 2D)."""
        query = self.query.to(body_and_instruction.dtype)
        return query.expand(*body_and_instruction.shape[:-1], -1)


class ConstantIndexPolicy(ChameleonPolicy):
    """Chameleon without f_c; the constant still attends to the scene (Eq. 8)."""

    method: ClassVar[str] = "constant-index"

    def _make_layer(self) -> MemoryLayer:
        layer = super()._make_layer()
        layer.recall.control_context.index = ConstantIndex(self.config.width)  # type: ignore[assignment]
        return layer
