"""Diffusion Policy with a transformer: action tokens attend to two observations' tokens."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from chameleon_policy.baselines.diffusion import DiffusionPolicy
from chameleon_policy.baselines.size import blocks_for, head_size, make_block, memory_size
from chameleon_policy.policy.action_flow import sinusoid
from chameleon_policy.policy.attention import TransformerBlock, two_layer_mlp
from chameleon_policy.policy.initialization import initialise


class DiffusionTransformerPolicy(DiffusionPolicy):
    """A quarter of the blocks encodes the observations, the others denoise."""

    method: ClassVar[str] = "diffusion-transformer"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        config, features = self.config, self.features
        blocks = max(2, blocks_for(config, memory_size(config) + head_size(config, features)))
        self.ages = nn.Parameter(torch.randn(self.frames, 1, config.width))
        self.encoder = nn.ModuleList(make_block(config) for _ in range(blocks // 4 or 1))
        self.decoder = nn.ModuleList(make_block(config) for _ in range(blocks - len(self.encoder)))
        self.level = two_layer_mlp(config.width, config.width)
        self.action_in = nn.Linear(features.action, config.width)
        self.norm = nn.LayerNorm(config.width)
        self.action_out = nn.Linear(config.width, features.action)
        initialise(self)

    def _condition(self, context: Tensor) -> Tensor:
        """Encode two frames of tokens (M 2 N D) as one set (M 2N D)."""
        tokens = (context + self.ages).flatten(1, 2)
        for block in self.encoder:
            tokens = block(tokens)
        return tokens

    def _denoised(self, noised: Tensor, level: Tensor, condition: Tensor) -> Tensor:
        width = self.config.width
        index = torch.arange(self.features.horizon, dtype=torch.float32, device=noised.device)
        tokens = self.action_in(noised) + sinusoid(index, width).to(noised.dtype)
        tokens = tokens + self.level(sinusoid(level.float(), width).to(noised.dtype)).unsqueeze(1)
        for block in self.decoder:
            assert isinstance(block, TransformerBlock)
            tokens = block(tokens, block.keys_and_values(condition))
        return self.action_out(self.norm(tokens))
