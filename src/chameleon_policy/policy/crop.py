"""Crops of camera images: the part of a frame that the encoder sees."""

from __future__ import annotations

import torch
from torch import Tensor

from chameleon_policy.policy.features import View


def corners(view: View, position: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the first row and column of every episode's crop (B) from positions (B 2) in [0, 1).

    0.5 is the centre, and a uniform draw makes every offset equally likely.
    """
    height, width = view.crop
    top = position[:, 0] * (view.height - height + 1)
    left = position[:, 1] * (view.width - width + 1)
    return top.long(), left.long()


def centred(images: Tensor, view: View) -> Tensor:
    """Cut out the centre of (B T H W 3), as `crop` does at position 0.5: (B T h w 3)."""
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
    """Map (... h w 3), uint8 or float in [0, 1], to (... 3 h w) in [-1, 1], channels last."""
    scale = 2 / 255 if images.dtype == torch.uint8 else 2.0
    return (images.to(dtype) * scale - 1).movedim(-1, -3)
