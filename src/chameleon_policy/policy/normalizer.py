"""Per-dimension normalisation of a range to [-1, 1], with statistics saved in the policy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

# A dimension with a smaller range counts as constant: scaling it would only amplify its noise.
CONSTANT_RANGE = 1e-6
LARGEST = torch.finfo(torch.float32).max


@dataclass(frozen=True, kw_only=True)
class Range:
    """The values that map to -1 and 1 in every dimension, such as the extremes of a dataset."""

    low: tuple[float, ...]
    high: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.low) != len(self.high):
            raise ValueError(f"Range: {len(self.low)} low values and {len(self.high)} high values")
        for index, (low, high) in enumerate(zip(self.low, self.high, strict=True)):
            if not (abs(low) <= LARGEST and abs(high) <= LARGEST):  # NaN fails this test, too
                raise ValueError(
                    f"Range: dimension {index} goes from {low} to {high}; expected finite numbers "
                    f"of at most {LARGEST:.3g}"
                )
            if low > high:
                raise ValueError(f"Range: dimension {index} has low {low} above high {high}")

    @property
    def constant(self) -> tuple[int, ...]:
        """Dimensions that hardly change, which a normaliser leaves as they are."""
        ends = enumerate(zip(self.low, self.high, strict=True))
        return tuple(index for index, (low, high) in ends if high - low <= CONSTANT_RANGE)

    @classmethod
    def of(cls, values: Tensor) -> Range:
        """Compute the range of (... D) over all but the last dimension; leave padding out."""
        if values.dim() < 2 or values.numel() == 0:
            raise ValueError(
                f"Range.of: expected values of the shape (..., D), got {tuple(values.shape)}"
            )
        flat = values.flatten(0, -2).double()
        return cls(low=tuple(flat.amin(0).tolist()), high=tuple(flat.amax(0).tolist()))


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """The ranges of all normalised quantities; None leaves a quantity as it is."""

    proprioception: Range | None = None
    action: Range | None = None
    objects: Range | None = None
    """One range for every number of every slot, slot by slot."""


class Normalizer(nn.Module):
    """A map of (... D) from its range to [-1, 1] and back; constant dimensions are left alone.

    It computes in float32 or finer: in bfloat16, half a metre would move in steps of millimetres.
    """

    middle: Tensor
    half_range: Tensor

    def __init__(self, size: int, limits: Range | None, name: str) -> None:
        super().__init__()
        low, high = (-1.0,) * size, (1.0,) * size
        if limits is not None:
            low, high = limits.low, limits.high
        if len(low) != size:
            raise ValueError(f"statistics of {name}: expected {size} dimensions, got {len(low)}")
        lowest = torch.tensor(low, dtype=torch.float64)
        highest = torch.tensor(high, dtype=torch.float64)
        varies = highest - lowest > CONSTANT_RANGE
        # Not in the state dict: the statistics have a readable file of their own.
        self.register_buffer(
            "middle", torch.where(varies, (highest + lowest) / 2, 0.0).float(), persistent=False
        )
        self.register_buffer(
            "half_range", torch.where(varies, (highest - lowest) / 2, 1.0).float(), persistent=False
        )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Normalizer:
        """Move the buffers to another device with the module, but keep their type."""
        middle, half_range = self.middle, self.half_range
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.middle = middle.to(self.middle.device)
        self.half_range = half_range.to(self.half_range.device)
        return self

    def forward(self, values: Tensor) -> Tensor:
        """Map the robot's units to [-1, 1]."""
        return (values - self.middle) / self.half_range

    def inverse(self, normalised: Tensor) -> Tensor:
        """Map [-1, 1] back to the robot's units."""
        return normalised * self.half_range + self.middle
