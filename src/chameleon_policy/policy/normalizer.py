"""Per-dimension min/max normalisation to [-1, 1]; the statistics live inside the policy and its checkpoint."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

# A dimension that moves less than this is constant: scaling it up would only amplify its noise.
CONSTANT_RANGE = 1e-6


@dataclass(frozen=True, kw_only=True)
class Range:
    """Smallest and largest value of every dimension over a dataset."""

    low: tuple[float, ...]
    high: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.low) != len(self.high):
            raise ValueError(f"Range: {len(self.low)} low values and {len(self.high)} high values")
        for index, (low, high) in enumerate(zip(self.low, self.high, strict=True)):
            if not low <= high:  # written so that NaN fails too
                raise ValueError(f"Range: dimension {index} has low {low} above high {high}")

    @classmethod
    def of(cls, values: Tensor) -> Range:
        """The range of (... D) over everything but the last dimension."""
        flat = values.flatten(0, -2).double()
        return cls(low=tuple(flat.amin(0).tolist()), high=tuple(flat.amax(0).tolist()))


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """The ranges of everything that is normalised; None leaves a quantity as it is."""

    proprioception: Range | None = None
    action: Range | None = None
    objects: Range | None = None


class Normalizer(nn.Module):
    """Maps (... D) from its range to [-1, 1] and back; constant dimensions are left alone."""

    scale: Tensor
    offset: Tensor

    def __init__(self, size: int, limits: Range | None, name: str) -> None:
        super().__init__()
        low, high = (limits.low, limits.high) if limits else ((-1.0,) * size, (1.0,) * size)
        if len(low) != size:
            raise ValueError(f"statistics of {name}: expected {size} dimensions, got {len(low)}")
        lowest, highest = torch.tensor(low, dtype=torch.float64), torch.tensor(high, dtype=torch.float64)
        spread = highest - lowest
        varies = spread > CONSTANT_RANGE
        scale = torch.where(varies, 2 / spread.clamp(min=CONSTANT_RANGE), 1.0)
        offset = torch.where(varies, -(highest + lowest) / spread.clamp(min=CONSTANT_RANGE), 0.0)
        # Not in the state dict: the statistics are saved on their own, where people can read them.
        self.register_buffer("scale", scale.float(), persistent=False)
        self.register_buffer("offset", offset.float(), persistent=False)

    def forward(self, values: Tensor) -> Tensor:
        """To [-1, 1]."""
        return values * self.scale + self.offset

    def inverse(self, normalised: Tensor) -> Tensor:
        """Back to the robot's units."""
        return (normalised - self.offset) / self.scale
