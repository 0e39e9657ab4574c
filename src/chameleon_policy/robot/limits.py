"""Limits of the actions that are sent to a robot: a box, and a speed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from chameleon_policy.json_files import read_json
from chameleon_policy.robot.robot import Array


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds of every dimension of an action, in the robot's units."""

    low: tuple[float, ...]
    high: tuple[float, ...]
    per_second: tuple[float, ...]
    """Largest change in a second; infinite: no limit."""

    def __post_init__(self) -> None:
        if not len(self.low) == len(self.high) == len(self.per_second):
            raise ValueError(
                f"limits: expected as many numbers of each kind, got {len(self.low)} low, "
                f"{len(self.high)} high and {len(self.per_second)} per_second"
            )
        for index, (low, high, speed) in enumerate(
            zip(self.low, self.high, self.per_second, strict=True)
        ):
            if not low <= high:  # written so that NaN fails too
                raise ValueError(
                    f"limits: number {index} has low {low} and high {high}; "
                    "low must not be above high"
                )
            if not speed > 0:
                raise ValueError(
                    f"limits: number {index} may change by {speed} in a second; "
                    "expected more than 0"
                )

    @classmethod
    def none(cls, size: int) -> Limits:
        """Return limits that allow everything."""
        return cls(low=(-math.inf,) * size, high=(math.inf,) * size, per_second=(math.inf,) * size)

    @classmethod
    def read(cls, path: Path, names: Sequence[str], default: Limits) -> Limits:
        """Read {"x": {"low": 0.2, "high": 0.7, "per_second": 0.5}, ...} from a JSON file.

        Numbers that the file leaves out are those of `default`.
        """
        given = read_json(path, "write it again")
        if not isinstance(given, dict) or not all(
            isinstance(entry, dict) for entry in given.values()
        ):
            raise ValueError(
                f'{path}: expected {{"{names[0]}": {{"low": ..., "high": ..., '
                '"per_second": ...}, ...}'
            )
        unknown = [name for name in given if name not in names]
        if unknown:
            raise ValueError(
                f"{path}: there is no {', '.join(unknown):.200} in an action; it has "
                f"{', '.join(names)}"
            )

        def numbers(kind: str) -> tuple[float, ...]:
            before = zip(names, getattr(default, kind), strict=True)
            return tuple(_number(path, given, name, kind, number) for name, number in before)

        return cls(low=numbers("low"), high=numbers("high"), per_second=numbers("per_second"))

    def apply(self, action: Array, before: Array, period: float) -> tuple[Array, bool]:
        """Return the nearest allowed action after `before`, and whether it differs from `action`.

        Speed takes precedence over the box: a robot outside its box returns at its largest speed.
        """
        wanted = np.asarray(action, np.float64)
        if wanted.shape != (len(self.low),):
            raise ValueError(
                f"action: expected {len(self.low)} numbers, got an array of shape {wanted.shape}"
            )
        if not np.isfinite(wanted).all():
            raise ValueError(f"action: expected finite numbers, got {wanted.tolist()}")
        reach = np.asarray(self.per_second) * period
        allowed = np.clip(wanted, self.low, self.high)
        allowed = np.clip(allowed, before - reach, before + reach)
        return allowed.astype(np.float32), bool((np.abs(allowed - wanted) > 1e-6).any())


def _number(
    path: Path, given: Mapping[str, Mapping[str, Any]], name: str, kind: str, default: float
) -> float:
    entry = given.get(name, {})
    unknown = set(entry) - {"low", "high", "per_second"}
    if unknown:
        raise ValueError(
            f"{path}: {name} has {', '.join(sorted(unknown)):.200}; expected low, high or "
            "per_second"
        )
    value = entry.get(kind, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{path}: {name}.{kind} must be a number, got {value!r:.80}")
    return float(value)
