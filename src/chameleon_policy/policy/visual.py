"""The per-view patch encoder: ResNet-18 with GroupNorm, without pooling, projected to width D."""

from __future__ import annotations

import itertools

import torch.nn.functional as F
from torch import Tensor, nn

from chameleon_policy.policy.config import PolicyConfig
from chameleon_policy.policy.crop import centred, corners, crop, to_unit_range
from chameleon_policy.policy.features import View

CHANNELS_PER_GROUP = 16


def group_norm(channels: int) -> nn.GroupNorm:
    """Make a GroupNorm, whose statistics do not depend on the batch."""
    return nn.GroupNorm(max(1, channels // CHANNELS_PER_GROUP), channels)


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions around a skip connection."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.first_norm = group_norm(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.second_norm = group_norm(outputs)
        self.shortcut: nn.Sequential | None = None
        if stride != 1 or inputs != outputs:
            projection = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)
            self.shortcut = nn.Sequential(projection, group_norm(outputs))

    def forward(self, image: Tensor) -> Tensor:
        """Map (F inputs h w) to (F outputs h/stride w/stride)."""
        hidden = F.relu(self.first_norm(self.first(image)))
        skipped = image if self.shortcut is None else self.shortcut(image)
        return F.relu(self.second_norm(self.second(hidden)) + skipped)


class PatchEncoder(nn.Module):
    """E_vis of one view, Eq. 2: every 32 x 32 pixels of the crop become one token."""

    def __init__(self, config: PolicyConfig, view: View) -> None:
        super().__init__()
        self.view = view
        channels = config.encoder_channels
        self.stem = nn.Sequential(
            nn.Conv2d(3, channels[0], 7, stride=2, padding=3, bias=False),
            group_norm(channels[0]),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        blocks: list[nn.Module] = []
        for stage, (inputs, outputs) in enumerate(itertools.pairwise((channels[0], *channels))):
            more = config.encoder_blocks[stage] - 1
            blocks.append(ResidualBlock(inputs, outputs, stride=1 if stage == 0 else 2))
            blocks.extend(ResidualBlock(outputs, outputs, stride=1) for _ in range(more))
        self.blocks = nn.ModuleList(blocks)
        self.projection = nn.Linear(channels[-1], config.width)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor, position: Tensor | None = None) -> Tensor:
        """Encode images (B T H W 3), uint8 or float in [0, 1], as patch tokens (B T N_v D).

        `position` (B 2) in [0, 1) places each episode's crop in the free rows and columns; without
        it the crop is centred.
        """
        if position is None:
            cut = centred(images, self.view)
        else:
            cut = crop(images, *corners(self.view, position), self.view.crop)
        patches = self.stem(to_unit_range(cut, self.projection.weight.dtype).flatten(0, 1))
        for block in self.blocks:
            patches = block(patches)
        tokens = patches.flatten(2).transpose(1, 2)
        return self.projection(tokens).unflatten(0, images.shape[:2])
