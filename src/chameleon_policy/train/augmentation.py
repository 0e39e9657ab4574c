"""Augmentation of episodes: mirroring, tinting and warping, on the device of the policy.

The tint of a table or millimetres between objects tell the demonstrations of a small dataset apart,
and a policy memorises the answer of each one. An appearance is drawn once per episode and applied
to all of its frames.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from chameleon_policy.device import send
from chameleon_policy.policy import EpisodeBatch

Matrix = tuple[tuple[float, float], tuple[float, float]]
UNTINTED = (1.0, 1.0, 1.0)
UNWARPED: Matrix = ((1.0, 0.0), (0.0, 1.0))


@dataclass(frozen=True)
class Mirror:
    """The signs by which mirroring a scene multiplies the robot's state and actions."""

    state: tuple[float, ...]
    action: tuple[float, ...]


@dataclass(frozen=True)
class Appearance:
    """The augmentation of one episode."""

    mirrored: bool = False
    tint: tuple[float, float, float] = UNTINTED
    """Factors of red, green and blue."""
    warp: Matrix = UNWARPED
    """A warped image shows at a point p, measured from its centre, what was at warp p."""


UNCHANGED = Appearance()


def draw_appearance(rng: np.random.Generator, mirror: bool, tint: float, warp: float) -> Appearance:
    """Draw an appearance.

    Half of the episodes are mirrored, if `mirror` is set. Colours are multiplied by factors that
    differ from 1 by up to `tint`, and images are stretched, rotated and sheared by up to `warp`.
    """
    mirrored = mirror and bool(rng.random() < 0.5)
    red, green, blue = (1 + tint * rng.uniform(-1, 1, 3)).tolist()
    (xx, xy), (yx, yy) = (np.eye(2) + warp * rng.uniform(-1, 1, (2, 2))).tolist()
    return Appearance(mirrored, (red, green, blue), ((xx, xy), (yx, yy)))


def augment(
    batch: EpisodeBatch, appearances: Sequence[Appearance], mirror: Mirror | None = None
) -> EpisodeBatch:
    """Return the batch with each of its episodes in the appearance that was drawn for it.

    Tensors of the batch may be changed in place. A mirrored appearance needs the robot's `mirror`.
    """
    tints = [appearance.tint for appearance in appearances]
    warps = [appearance.warp for appearance in appearances]
    images = {
        view: warp_images(tint_images(frames, tints), warps)
        for view, frames in batch.observation.images.items()
    }
    mirrored = [row for row, appearance in enumerate(appearances) if appearance.mirrored]
    if mirrored:
        assert mirror is not None, "mirroring needs the signs of the robot's state and actions"
        device = batch.actions.device
        rows = send(torch.tensor(mirrored), device)
        for numbers, signs in (
            (batch.observation.proprioception, mirror.state),
            (batch.actions, mirror.action),
        ):
            flipped = numbers.index_select(0, rows) * send(torch.tensor(signs), device)
            numbers.index_copy_(0, rows, flipped)
        for frames in images.values():
            frames.index_copy_(0, rows, frames.index_select(0, rows).flip(3))
    return replace(batch, observation=replace(batch.observation, images=images))


def tint_images(images: Tensor, factors: Sequence[tuple[float, float, float]]) -> Tensor:
    """Multiply the colours of each episode's images (B T H W 3), uint8, by its factors."""
    if all(factor == UNTINTED for factor in factors):
        return images
    factor = send(torch.tensor(factors, dtype=torch.float32), images.device)
    return (images * factor[:, None, None, None]).round_().clamp_(0, 255).to(torch.uint8)


def warp_images(images: Tensor, matrices: Sequence[Matrix]) -> Tensor:
    """Warp all images of an episode (B T H W 3), uint8, by its matrix.

    Points beyond an edge show the nearest pixel of the edge.
    """
    if all(matrix == UNWARPED for matrix in matrices):
        return images
    matrix = send(torch.tensor(matrices, dtype=torch.float32), images.device)
    batch, time, height, width, _ = images.shape
    grid = F.affine_grid(F.pad(matrix, (0, 1)), [batch, 1, height, width], align_corners=False)
    # float16 represents every uint8 exactly
    precision = torch.float16 if images.is_cuda else torch.float32
    frames = images.permute(0, 1, 4, 2, 3).flatten(1, 2).to(precision)
    frames = F.grid_sample(frames, grid.to(precision), padding_mode="border", align_corners=False)
    warped: Tensor = frames.round_().to(torch.uint8).unflatten(1, (time, 3))
    return warped.permute(0, 1, 3, 4, 2).contiguous()
