"""Delays in the robot loop, and ticks in which something was missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass
class Timings:
    """Measurements of one episode; times are in seconds."""

    lateness: list[float] = field(default_factory=list)
    """From the time a tick was due until it began."""
    observe: list[float] = field(default_factory=list)
    """From an observation until the server confirmed that the memory has it."""
    chunk: list[float] = field(default_factory=list)
    """From an observation until the chunk that was requested with it had arrived."""
    end_to_end: list[float] = field(default_factory=list)
    """From an observation until the first action planned from it was sent to the robot."""
    ticks: int = 0
    missed_periods: int = 0
    """Periods of the clock in which no tick began."""
    missed_memory: int = 0
    """Observations that the server has not confirmed to be in the memory."""
    idle: int = 0
    """Ticks without a planned action, after the first one, in which the robot held still."""
    limited: int = 0
    """Actions that the limits changed."""


def summarise_timings(episodes: Sequence[Timings]) -> dict[str, Any]:
    """Return counts over all episodes, and percentiles of the delays in milliseconds."""
    ticks = sum(each.ticks for each in episodes)
    counted = {
        name: sum(getattr(each, name) for each in episodes)
        for name in ("missed_periods", "missed_memory", "idle", "limited")
    }
    delays = {
        f"{name}_ms": _percentiles([delay for each in episodes for delay in getattr(each, name)])
        for name in ("lateness", "observe", "chunk", "end_to_end")
    }
    return {"episodes": len(episodes), "ticks": ticks, **counted, **delays}


def _percentiles(seconds: Sequence[float]) -> dict[str, float | int]:
    if not seconds:
        return {"count": 0}
    p50, p99 = np.percentile(seconds, [50, 99]) * 1000
    return {
        "count": len(seconds),
        "p50": round(float(p50), 3),
        "p99": round(float(p99), 3),
        "max": round(1000 * max(seconds), 3),
    }
