"""The per-view patch encoder: ResNet-18 with GroupNorm, without pooling, projected to the token width."""

from __future__ import annotations

import itertools

import torch.nn.functional as F
from torch import Tensor, nn

from chameleon_policy.policy.config import PolicyConfig

CHANNELS_PER_GROUP = 16


def group_norm(channels: int) -> nn.GroupNorm:
    """GroupNorm in place of BatchNorm: its statistics do not depend on the batch, so EMA weights stay consistent."""
    return nn.GroupNorm(max(1, channels // CHANNELS_PER_GROUP), channels)


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions around a skip connection."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.first_norm = group_norm(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.second_norm = group_norm(outputs)
        self.shortcut = (
            nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), group_norm(outputs))
            if stride != 1 or inputs != outputs
            else nn.Identity()
        )

    def forward(self, image: Tensor) -> Tensor:
        """(F inputs h w) to (F outputs h/stride w/stride)."""
        hidden = F.relu(self.first_norm(self.first(image)))
        return F.relu(self.second_norm(self.second(hidden)) + self.shortcut(image))


class PatchEncoder(nn.Module):
    """E_vis of one view, Eq. 2: every 32 x 32 pixels of the crop become one token."""

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__()
        channels = config.encoder_channels
        self.stem = nn.Sequential(
            nn.Conv2d(3, channels[0], 7, stride=2, padding=3, bias=False),
            group_norm(channels[0]),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        blocks: list[nn.Module] = []
        for stage, (inputs, outputs) in enumerate(itertools.pairwise((channels[0], *channels))):
            stride = 1 if stage == 0 else 2
            blocks.append(ResidualBlock(inputs, outputs, stride))
            blocks.extend(ResidualBlock(outputs, outputs, 1) for _ in range(config.encoder_blocks[stage] - 1))
        self.blocks = nn.Sequential(*blocks)
        self.projection = nn.Linear(channels[-1], config.width)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, frames: Tensor) -> Tensor:
        """Frames (F 3 h w) in [-1, 1] to patch tokens (F N_v D), row by row."""
        patches = self.blocks(self.stem(frames))
        return self.projection(patches.flatten(2).transpose(1, 2))
