"""How an episode looks when training shows it: as it was, in a mirror, in light of another colour.

Few demonstrations can be told apart by the tint of their table, and are then learned by heart, each with its answer. What an
episode looks like is drawn once for all of its frames.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Mirror:
    """What a mirror does to a robot's numbers: the signs that its state and its actions are multiplied with."""

    state: tuple[float, ...]
    action: tuple[float, ...]


@dataclass(frozen=True)
class Appearance:
    """How one episode looks."""

    mirrored: bool = False
    tint: tuple[float, float, float] = (1.0, 1.0, 1.0)
    """Factors of red, green and blue."""


AS_IT_WAS = Appearance()


def draw_appearance(rng: np.random.Generator, mirror: bool, tint: float) -> Appearance:
    """In a mirror every other time; with colours that differ by up to the share `tint`."""
    mirrored = mirror and bool(rng.random() < 0.5)
    red, green, blue = (1 + tint * rng.uniform(-1, 1, 3)).tolist()
    return Appearance(mirrored, (red, green, blue))


def tinted(images: Tensor, factors: Sequence[tuple[float, float, float]]) -> Tensor:
    """Pictures (B T H W 3), uint8, with the colours of each episode multiplied."""
    if all(each == (1.0, 1.0, 1.0) for each in factors):
        return images
    factor = torch.tensor(factors, dtype=torch.float32)
    factor = factor.pin_memory().to(images.device, non_blocking=True) if images.is_cuda else factor
    return (images * factor[:, None, None, None]).round_().clamp_(0, 255).to(torch.uint8)
