"""How an episode looks when training shows it: as it was, in a mirror, in another light, through a
bent lens.

Few demonstrations can be told apart by the tint of their table or the millimetres between their
objects, and are then learned by heart, each with its answer. What an episode looks like is drawn
once for all of its frames.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from chameleon_policy.device import sent

Matrix = tuple[tuple[float, float], tuple[float, float]]
UNWARPED: Matrix = ((1.0, 0.0), (0.0, 1.0))


@dataclass(frozen=True)
class Mirror:
    """What a mirror does to a robot's numbers: the signs that its state and its actions are
    multiplied with.
    """

    state: tuple[float, ...]
    action: tuple[float, ...]


@dataclass(frozen=True)
class Appearance:
    """How one episode looks."""

    mirrored: bool = False
    tint: tuple[float, float, float] = (1.0, 1.0, 1.0)
    """Factors of red, green and blue."""
    warp: Matrix = UNWARPED
    """What is seen at a point p, measured from the picture's centre, was at warp p."""


AS_IT_WAS = Appearance()


def draw_appearance(rng: np.random.Generator, mirror: bool, tint: float, warp: float) -> Appearance:
    """In a mirror every other time; with colours that differ by up to the share `tint`; stretched,
    turned and sheared by up to the share `warp`.
    """
    mirrored = mirror and bool(rng.random() < 0.5)
    red, green, blue = (1 + tint * rng.uniform(-1, 1, 3)).tolist()
    (xx, xy), (yx, yy) = (np.eye(2) + warp * rng.uniform(-1, 1, (2, 2))).tolist()
    return Appearance(mirrored, (red, green, blue), ((xx, xy), (yx, yy)))


def tinted(images: Tensor, factors: Sequence[tuple[float, float, float]]) -> Tensor:
    """Pictures (B T H W 3), uint8, with the colours of each episode multiplied."""
    if all(each == (1.0, 1.0, 1.0) for each in factors):
        return images
    factor = sent(torch.tensor(factors, dtype=torch.float32), images.device)
    return (images * factor[:, None, None, None]).round_().clamp_(0, 255).to(torch.uint8)


def warped(images: Tensor, matrices: Sequence[Matrix]) -> Tensor:
    """Pictures (B T H W 3), uint8, with all frames of an episode warped alike; beyond an edge, its
    last pixels go on.
    """
    if all(each == UNWARPED for each in matrices):
        return images
    matrix = sent(torch.tensor(matrices, dtype=torch.float32), images.device)
    batch, time, height, width, _ = images.shape
    grid = F.affine_grid(F.pad(matrix, (0, 1)), [batch, 1, height, width], align_corners=False)
    kind = torch.float16 if images.is_cuda else torch.float32  # halves hold every byte
    frames = images.permute(0, 1, 4, 2, 3).flatten(1, 2).to(kind)
    frames = F.grid_sample(frames, grid.to(kind), padding_mode="border", align_corners=False)
    pictures: Tensor = frames.round_().to(torch.uint8).unflatten(1, (time, 3))
    return pictures.permute(0, 1, 3, 4, 2).contiguous()
