"""Timing on shared, noisy machines: candidates take turns, and ratios come from one run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial

import torch


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure(function: Callable[[], object], device: torch.device) -> float:
    """Return the seconds of one call, including the device's work."""
    synchronize(device)
    start = time.perf_counter()
    function()
    synchronize(device)
    return time.perf_counter() - start


def take_turns(
    candidates: Mapping[str, Callable[[], object]], device: torch.device, rounds: int
) -> dict[str, float]:
    """Return the median seconds of candidates that take turns, so that noise hits all alike."""
    return compare(
        {name: partial(measure, function, device) for name, function in candidates.items()}, rounds
    )


def compare(measurements: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """Return medians of measurements that take turns, after one round that does not count."""
    values: dict[str, list[float]] = {name: [] for name in measurements}
    for number in range(1 + rounds):
        for name, measurement in measurements.items():
            value = measurement()
            if number > 0:
                values[name].append(value)
    return {name: statistics.median(measured) for name, measured in values.items()}
