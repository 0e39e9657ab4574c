"""The noise that a sampler of action chunks begins with."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

Source = Literal["gaussian", "zero"]
"""Distribution of the noise; `zero` makes sampling deterministic."""


def starting_chunk(
    shape: tuple[int, int, int],
    like: Tensor,
    steps: int,
    source: Source | Tensor,
    generator: torch.Generator | None,
) -> Tensor:
    """Return the noise that sampling begins with (B H A), in the type of `like`."""
    if not isinstance(steps, int) or steps < 1:
        raise ValueError(
            f"steps: expected a whole number of sampling steps, at least 1, got {steps!r}"
        )
    if isinstance(source, Tensor):
        if tuple(source.shape) != shape:
            raise ValueError(
                f"source: expected noise of the shape {shape}, got {tuple(source.shape)}"
            )
        return source.to(like)
    if source == "gaussian":
        return torch.randn(shape, dtype=like.dtype, device=like.device, generator=generator)
    if source == "zero":
        return like.new_zeros(shape)
    raise ValueError(
        f"source: expected one of {', '.join(get_args(Source))}, or a tensor, got {source!r}"
    )
