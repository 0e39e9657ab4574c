"""A long-context transformer over the last 64 frames, one vector each, without further memory."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from chameleon_policy.baselines.frame_summary import FrameSummary
from chameleon_policy.baselines.size import blocks_for, count, make_block, memory_size
from chameleon_policy.baselines.window import SummaryWindowPolicy
from chameleon_policy.policy.action_flow import ActionFlow, sinusoid
from chameleon_policy.policy.initialization import initialise
from chameleon_policy.policy.visuomotor import FlowPolicy


class TransformerPolicy(SummaryWindowPolicy, FlowPolicy):
    """A transformer over a window of frame summaries computes h of the newest frame."""

    method: ClassVar[str] = "transformer-64"
    frames: ClassVar[int] = 64

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        config = self.config
        self.summary = FrameSummary(config, config.layers)
        budget = memory_size(config) - count(lambda: FrameSummary(config, config.layers))
        self.blocks = nn.ModuleList(make_block(config) for _ in range(blocks_for(config, budget)))
        self.norm = nn.LayerNorm(config.width)
        self.action_flow = ActionFlow(config, self.features.action, self.features.horizon)
        initialise(self)

    def _condition(self, context: Tensor) -> Tensor:
        index = torch.arange(self.frames, dtype=torch.float32, device=context.device)
        tokens = context + sinusoid(index, self.config.width).to(context.dtype)
        for block in self.blocks:
            tokens = block(tokens)
        return self.norm(tokens[:, -1])
