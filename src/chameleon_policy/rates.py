"""Success rates: their intervals (Wilson), means of several (MOVER), and two methods on the same
episodes (McNemar).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Rate:
    """A share of successes with its Wilson 95 % interval; `value` is NaN when nothing was
    counted.
    """

    value: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, successes: int, count: int) -> Rate:
        """Wilson's score interval: unlike the normal one it stays inside 0..1 and is honest at 0
        and at 1.
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
        """What `as_dict` wrote."""
        return cls(
            **{**numbers, "value": math.nan if numbers["value"] is None else numbers["value"]}
        )

    def as_dict(self) -> dict[str, float | int | None]:
        """For JSON, which has no NaN."""
        return {
            "value": None if math.isnan(self.value) else self.value,
            "low": self.low,
            "high": self.high,
            "count": self.count,
        }


def average(parts: Sequence[Rate]) -> Rate:
    """The mean of independent rates; its interval by MOVER.

    With the parts' estimates p and intervals [l, u], the mean of k parts reaches sqrt(sum (p -
    l)^2) / k below and sqrt(sum (u - p)^2) / k above. If one of them is unknown, so is the mean.
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
    """Two-sided exact p: how likely a fair coin splits the episodes that differ at least as
    unevenly.
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
