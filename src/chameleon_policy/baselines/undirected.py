"""Ablation: recall asks a learned constant, whatever the present asks for (addressability).

The other reading of the paper's "w/o control index", which it calls undirected access to history.
The control context u_t is computed as before and still reaches the working state (Eq. 10) and
Control-JEPA; it only asks nothing.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from chameleon_policy.policy import ChameleonPolicy, PolicyConfig
from chameleon_policy.policy.memory import ControlIndexedRecall, MemoryLayer


class UndirectedRecall(ControlIndexedRecall):
    """r_t = LN(Attn(a, E_t, E_t)): Eq. 9 with a learned constant a in place of u_t."""

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__(config)
        self.asked = nn.Parameter(torch.randn(config.width))

    def forward(self, control_context: Tensor, traces: Tensor) -> Tensor:
        """Recall (B T D) what traces (B T N D) answer to the constant."""
        return super().forward(self.asked.to(traces.dtype).expand(*traces.shape[:-2], -1), traces)


class UndirectedPolicy(ChameleonPolicy):
    """Chameleon whose recall always asks the same."""

    method: ClassVar[str] = "undirected"

    def _make_layer(self) -> MemoryLayer:
        layer = super()._make_layer()
        layer.recall = UndirectedRecall(self.config)
        return layer
