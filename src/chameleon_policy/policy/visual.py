"""The per-view patch encoder: ResNet-18 with GroupNorm, without pooling, projected to the token
width.
"""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chameleon_policy.policy.config import PolicyConfig
from chameleon_policy.policy.features import View

CHANNELS_PER_GROUP = 16


def group_norm(channels: int) -> nn.GroupNorm:
    """Make a GroupNorm. Its statistics do not depend on the batch, as BatchNorm's do, so EMA
    weights stay consistent.
    """
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
            nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), group_norm(outputs)
            )
            if stride != 1 or inputs != outputs
            else None
        )

    def forward(self, image: Tensor) -> Tensor:
        """Compute relu(norm(conv(relu(norm(conv(x))))) + shortcut(x)): (F inputs h w) to (F outputs
        h/stride w/stride).
        """
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
            stride = 1 if stage == 0 else 2
            blocks.append(ResidualBlock(inputs, outputs, stride))
            blocks.extend(
                ResidualBlock(outputs, outputs, 1) for _ in range(config.encoder_blocks[stage] - 1)
            )
        self.blocks = nn.ModuleList(blocks)
        self.projection = nn.Linear(channels[-1], config.width)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor, position: Tensor | None = None) -> Tensor:
        """Encode images (B T H W 3), uint8 or float in [0, 1], as patch tokens (B T N_v D), row by
        row.

        `position` (B 2) in [0, 1) says where in the free rows and columns each episode's crop lies;
        centred without it.
        """
        # A slice where every episode's crop is the same: nothing to gather, and what can be
        # exported as it is.
        cut = centred(images, self.view)
        if position is not None:
            cut = crop(images, *corners(self.view, position), self.view.crop)
        patches = self.stem(to_unit_range(cut, self.projection.weight.dtype).flatten(0, 1))
        for block in self.blocks:
            patches = block(patches)
        tokens = patches.flatten(2).transpose(1, 2)
        return self.projection(tokens).unflatten(0, images.shape[:2])


def corners(view: View, position: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the first row and column of every episode's crop (B) from positions (B 2) in [0, 1).

    0.5 is the centre, and a uniform draw makes every offset equally likely.
    """
    height, width = view.crop
    return (position[:, 0] * (view.height - height + 1)).long(), (
        position[:, 1] * (view.width - width + 1)
    ).long()


def centred(images: Tensor, view: View) -> Tensor:
    """Cut out the centre of (B T H W 3), where `corners` has it at a position of 0.5: (B T h w
    3).
    """
    height, width = view.crop
    top, left = (view.height - height + 1) // 2, (view.width - width + 1) // 2
    return images[:, :, top : top + height, left : left + width]


def crop(images: Tensor, top: Tensor, left: Tensor, size: tuple[int, int]) -> Tensor:
    """Cut `size` out of (B T H W 3) at every episode's own corner: (B T h w 3)."""
    (height, width), (episodes, steps) = size, images.shape[:2]
    episode, step = (torch.arange(count, device=images.device) for count in (episodes, steps))
    rows = top[:, None] + torch.arange(height, device=images.device)
    columns = left[:, None] + torch.arange(width, device=images.device)
    return images[
        episode[:, None, None, None],
        step[:, None, None],
        rows[:, None, :, None],
        columns[:, None, None, :],
    ]


def to_unit_range(images: Tensor, dtype: torch.dtype) -> Tensor:
    """Bring (... h w 3), uint8 or float in [0, 1], to (... 3 h w) in [-1, 1]; the memory stays
    channels last.
    """
    scale = 2 / 255 if images.dtype == torch.uint8 else 2.0
    return (images.to(dtype) * scale - 1).movedim(-1, -3)
