"""Success rates: intervals (Wilson), means (MOVER), and comparison on equal episodes (McNemar)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Rate:
    """Share of successes with its Wilson 95 % interval; `value` is NaN if the count is zero."""

    value: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, successes: int, count: int) -> Rate:
        """Return the rate with Wilson's score interval.

        Unlike the normal approximation it stays inside 0..1 and has a width at 0 and 1.
        """
        if count == 0:
            return cls(math.nan, 0.0, 1.0, 0)
        z = 1.959963984540054
        share, spread = successes / count, z * z / count
        centre = (share + spread / 2) / (1 + spread)
        half = z * math.sqrt(share * (1 - share) / count + spread / (4 * count)) / (1 + spread)
        return cls(share, max(0.0, centre - half), min(1.0, centre + half), count)

    @classmethod
    def from_dict(cls, numbers: Mapping[str, Any]) -> Rate:
        """Return the rate that `as_dict` wrote."""
        return cls(
            **{**numbers, "value": math.nan if numbers["value"] is None else numbers["value"]}
        )

    def as_dict(self) -> dict[str, float | int | None]:
        """Return the rate for JSON, which has no NaN."""
        return {
            "value": None if math.isnan(self.value) else self.value,
            "low": self.low,
            "high": self.high,
            "count": self.count,
        }


def average(parts: Sequence[Rate]) -> Rate:
    """Return the mean of independent rates with its MOVER interval.

    With estimates p and intervals [l, u] of k parts, the interval of their mean extends
    sqrt(sum (p - l)^2) / k below it and sqrt(sum (u - p)^2) / k above. If a part is unknown, so is
    the mean.
    """
    count = sum(part.count for part in parts)
    if any(math.isnan(part.value) for part in parts):
        return Rate(math.nan, 0.0, 1.0, count)
    number = len(parts)
    mean = sum(part.value for part in parts) / number
    below = math.sqrt(sum((part.value - part.low) ** 2 for part in parts)) / number
    above = math.sqrt(sum((part.high - part.value) ** 2 for part in parts)) / number
    return Rate(mean, max(0.0, mean - below), min(1.0, mean + above), count)


def mcnemar(lost: int, gained: int) -> float:
    """Return the two-sided exact p value.

    It is the probability that a fair coin divides the `lost + gained` episodes in which two methods
    differ at least as unevenly.
    """
    number = lost + gained
    ways = sum(math.comb(number, few) for few in range(min(lost, gained) + 1))
    share: float = 2 * ways / (1 << number)
    return min(1.0, share)


def interval(rate: Rate) -> str:
    """Format a rate and its 95 % interval in per cent, without decimals."""
    if math.isnan(rate.value):
        return "-"
    return f"{percent(rate.value)} [{percent(rate.low)}, {percent(rate.high)}]"


def percent(share: float) -> int:
    """Round a share to whole per cent; halves go up: 185 of 200 are 93 %."""
    return math.floor(round(100 * share, 6) + 0.5)  # 100 * 0.285 is a little less than 28.5
