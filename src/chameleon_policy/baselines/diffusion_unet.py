"""Diffusion Policy with a U-Net over the chunk's time, conditioned by FiLM on two observations."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chameleon_policy.baselines.diffusion import DiffusionPolicy
from chameleon_policy.baselines.frame_summary import FrameSummary
from chameleon_policy.baselines.size import closest, count, head_size, memory_size
from chameleon_policy.baselines.window import SummaryWindowPolicy
from chameleon_policy.policy.action_flow import sinusoid
from chameleon_policy.policy.attention import two_layer_mlp
from chameleon_policy.policy.initialization import initialise
from chameleon_policy.policy.visual import CHANNELS_PER_GROUP, group_norm

KERNEL = 5
LEVELS = (1, 2, 4)
"""Channels of the levels, as multiples of those of the first one."""


class FiLMBlock(nn.Module):
    """Two convolutions over time around a skip connection, with FiLM between them."""

    def __init__(self, inputs: int, outputs: int, condition: int) -> None:
        super().__init__()
        self.first = _convolution(inputs, outputs)
        self.film = nn.Sequential(nn.Mish(), nn.Linear(condition, 2 * outputs))
        self.second = _convolution(outputs, outputs)
        self.skip = nn.Conv1d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, sequence: Tensor, condition: Tensor) -> Tensor:
        """Map a sequence (M inputs H) and a condition (M condition) to (M outputs H)."""
        scale, shift = self.film(condition).unsqueeze(-1).chunk(2, dim=1)
        return self.second((1 + scale) * self.first(sequence) + shift) + self.skip(sequence)


class UNet(nn.Module):
    """A U-Net with three levels of time resolution."""

    def __init__(self, action: int, condition: int, channels: int) -> None:
        super().__init__()
        widths = [channels * level for level in LEVELS]
        steps = list(pairwise([action, *widths]))
        self.down = nn.ModuleList(
            nn.ModuleList(
                [FiLMBlock(inputs, outputs, condition), FiLMBlock(outputs, outputs, condition)]
            )
            for inputs, outputs in steps
        )
        self.shorter = nn.ModuleList(
            nn.Conv1d(width, width, 3, stride=2, padding=1) for width in widths[:-1]
        )
        self.middle = nn.ModuleList(FiLMBlock(widths[-1], widths[-1], condition) for _ in range(2))
        self.up = nn.ModuleList(
            nn.ModuleList(
                [FiLMBlock(2 * outputs, inputs, condition), FiLMBlock(inputs, inputs, condition)]
            )
            for inputs, outputs in reversed(list(pairwise(widths)))
        )
        self.longer = nn.ModuleList(
            nn.ConvTranspose1d(width, width, 4, stride=2, padding=1) for width in widths[-2::-1]
        )
        self.out = nn.Sequential(_convolution(channels, channels), nn.Conv1d(channels, action, 1))

    def forward(self, chunk: Tensor, condition: Tensor) -> Tensor:
        """Map a chunk (M H A) and a condition (M condition) to a chunk (M H A)."""
        horizon, multiple = chunk.shape[1], 2 ** len(self.shorter)
        sequence = chunk.mT
        if horizon % multiple:
            sequence = F.pad(sequence, (0, -horizon % multiple), mode="replicate")
        passed: list[Tensor] = []
        for level, blocks in enumerate(self.down):
            for block in blocks:  # type: ignore[attr-defined]
                sequence = block(sequence, condition)
            passed.append(sequence)
            if level < len(self.shorter):
                sequence = self.shorter[level](sequence)
        for block in self.middle:
            sequence = block(sequence, condition)
        for blocks, longer in zip(self.up, self.longer, strict=True):
            sequence = torch.cat([sequence, passed.pop()], dim=1)
            for block in blocks:  # type: ignore[attr-defined]
                sequence = block(sequence, condition)
            sequence = longer(sequence)
        return self.out(sequence)[..., :horizon].mT


class DiffusionUNetPolicy(DiffusionPolicy, SummaryWindowPolicy):
    """Each frame is one vector; the U-Net has the rest of Chameleon's parameter budget."""

    method: ClassVar[str] = "diffusion-unet"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        config, features = self.config, self.features
        self.summary = FrameSummary(config, config.layers)
        self.level = two_layer_mlp(config.width, config.width)
        spent = count(lambda: FrameSummary(config, config.layers)) + count(
            lambda: two_layer_mlp(config.width, config.width)
        )
        budget = memory_size(config) + head_size(config, features) - spent
        condition = (self.frames + 1) * config.width
        sizes = range(CHANNELS_PER_GROUP, config.width + 1, CHANNELS_PER_GROUP)
        channels = closest(sizes, lambda size: UNet(features.action, condition, size), budget)
        self.unet = UNet(features.action, condition, channels)
        initialise(self)

    def _condition(self, context: Tensor) -> Tensor:
        return context.flatten(1)

    def _denoised(self, noised: Tensor, level: Tensor, condition: Tensor) -> Tensor:
        token = self.level(sinusoid(level.float(), self.config.width).to(noised.dtype))
        return self.unet(noised, torch.cat([token, condition.to(token.dtype)], dim=-1))


def _convolution(inputs: int, outputs: int) -> nn.Sequential:
    # Groups are as large as in the encoders; small ones would remove the chunk's position.
    return nn.Sequential(
        nn.Conv1d(inputs, outputs, KERNEL, padding=KERNEL // 2), group_norm(outputs), nn.Mish()
    )
