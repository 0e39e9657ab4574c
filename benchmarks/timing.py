"""Timing on shared, noisy machines: candidates take turns, and ratios come from one run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

import torch


def synchronize(device: torch.device) -> None:
    """Wait until the device has done what it was told."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure(function: Callable[[], object], device: torch.device) -> float:
    """Seconds of one call, the device's work included."""
    synchronize(device)
    start = time.perf_counter()
    function()
    synchronize(device)
    return time.perf_counter() - start


def take_turns(candidates: Mapping[str, Callable[[], object]], device: torch.device, rounds: int) -> dict[str, float]:
    """Median seconds of every candidate; they run one after the other in each round, so that noise hits all alike."""
    for function in candidates.values():
        measure(function, device)
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, function in candidates.items():
            seconds[name].append(measure(function, device))
    return {name: statistics.median(values) for name, values in seconds.items()}
