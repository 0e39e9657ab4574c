"""Measure each part, write the result after each, and print one table."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
import tyro

from benchmarks.performance.control import ROBOT_PEERS, control
from benchmarks.performance.kinds import kinds
from benchmarks.performance.length import length
from benchmarks.performance.memory import release
from benchmarks.performance.recording import recording
from benchmarks.performance.sizes import CPU, GPU, SEED
from benchmarks.performance.state_space import LAYER_PEERS, state_space
from benchmarks.performance.table import print_table
from benchmarks.performance.training import training
from chameleon_policy.provenance import write_result

COMMAND = "python -m benchmarks.performance"
Part = Literal["training", "control", "ssm", "length", "recording", "kinds"]


def main(
    device: Literal["cpu", "cuda"] = "cpu",
    parts: tuple[Part, ...] = ("training", "control", "ssm", "length", "recording", "kinds"),
    peers: Path | None = None,
    out: Path | None = None,
) -> None:
    """Measure, print, and write the result.

    Args:
        device: Where to run.
        parts: What to measure; recording and kinds are for GPUs alone.
        peers: Folder to look for lerobot and mamba_ssm in, beside what is installed.
        out: File to write; runs/performance-<device>.json by default.
    """
    target, sizes = torch.device(device), GPU if device == "cuda" else CPU
    torch.backends.cudnn.benchmark = True
    if peers is not None:
        sys.path.append(str(peers))
    path = out or Path("runs") / f"performance-{device}.json"
    places = {"--out", "--peers"}  # where files lie on this machine
    kept = [
        argument
        for before, argument in zip(["", *sys.argv], sys.argv, strict=False)
        if not places & {before, argument}
    ]
    command = " ".join([COMMAND, *kept[1:]])
    jobs: dict[str, Callable[[], dict[str, Any]]] = {
        "training": partial(training, sizes, target),
        "control": partial(control, sizes, target, tuple(ROBOT_PEERS)),
        "ssm": partial(state_space, sizes, target, LAYER_PEERS),
        "length": partial(length, sizes, target),
    }
    if device == "cuda":
        jobs["recording"] = partial(recording, sizes, target)
        jobs["kinds"] = partial(kinds, sizes, target)
    result: dict[str, Any] = {}
    # In this order whatever the order asked for: kinds comes last, since a profiler slows down
    # whatever runs after it.
    for name in (name for name in jobs if name in parts):
        result[name] = jobs[name]()
        release(target)
        # After every part, so that a run that is cut off leaves what it has.
        write_result(path, {**summary(result), **result}, command=command, seeds=[SEED])
    print_table(result, target)
    print(f"Written to {path}")


def summary(result: dict[str, Any]) -> dict[str, float]:
    """Return the headline metrics."""
    found: dict[str, float] = {}
    if "training" in result:
        found["train_speedup"] = result["training"]["speedup"]
        found["train_memory_ratio"] = result["training"]["memory_ratio"]
    if "control" in result:
        fast = result["control"]["fast"]
        found |= {"act50_ms": fast["act_50"]["p50_ms"], "act8_ms": fast["act_8"]["p50_ms"]}
        found |= {"observe224_ms": fast["observe"]["p50_ms"]}
    if "ssm" in result:
        found["ssm_speedup_best_peer"] = result["ssm"]["speedup_best_peer"]
    return found


if __name__ == "__main__":
    tyro.cli(main, prog=COMMAND)
