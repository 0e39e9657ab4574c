"""Measure what one busy process beside them costs a server and a training on the CPU.

    python -m benchmarks.busy

Every command lets torch's threads sleep while they wait (`chameleon_policy.threads`). That is
compared with threads that spin, as they do by default in GNU's OpenMP. A nano server answers one
robot at 20 Hz; a nano policy is trained for a few steps, and all losses must be equal.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from rich.console import Console
from rich.table import Table

from benchmarks import with_arguments
from benchmarks.serving import STATE
from benchmarks.serving_client import observation
from benchmarks.training import demonstrations
from chameleon_client import Client
from chameleon_policy import ChameleonPolicy, preset
from chameleon_policy.provenance import write_result
from chameleon_policy.threads import VARIABLES

COMMAND = "python -m benchmarks.busy"
SEED = 0
RATE = 20.0
CHAMELEON = (sys.executable, "-m", "chameleon_policy.cli")
SETTINGS: dict[str, dict[str, str]] = {"spinning": {"GOMP_SPINCOUNT": "300000"}, "asleep": {}}
"""What the environment says; without a word the commands choose."""


def surroundings(setting: str) -> dict[str, str]:
    """Return the environment of a setting, with torch's own number of threads."""
    left_out = (*VARIABLES, "OMP_NUM_THREADS")
    given = {name: value for name, value in os.environ.items() if name not in left_out}
    return given | SETTINGS[setting]


@contextmanager
def neighbours(count: int) -> Iterator[None]:
    """Keep this many cores busy."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


@contextmanager
def server(policy: Path, setting: str) -> Iterator[str]:
    """Run `chameleon serve`; yield its URL."""
    process = subprocess.Popen(
        [*CHAMELEON, "serve", str(policy), "--port", "0", "--device", "cpu"],
        stdout=subprocess.PIPE,
        text=True,
        env=surroundings(setting),
    )
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        if " at ws://" not in said:
            raise RuntimeError(f"the server did not start: {said or process.wait()}")
        yield said.partition(" at ")[2].partition(",")[0]
    finally:
        process.terminate()
        process.wait()


def served(policy: Path, setting: str, busy: int, ticks: int) -> dict[str, float]:
    """Return a robot's waits at a server, in ms."""
    waits: dict[str, list[float]] = {"observe": [], "act": []}
    with server(policy, setting) as url, Client(url, timeout=120) as client, neighbours(busy):
        session = client.open(seed=SEED)
        seen = observation(client.metadata, np.random.default_rng(SEED))
        begin = time.perf_counter()
        for tick in range(ticks):
            time.sleep(max(0.0, begin + tick / RATE - time.perf_counter()))
            start = time.perf_counter()
            session.observe(**seen)
            observed = time.perf_counter()
            waits["observe"].append(1e3 * (observed - start))
            if tick % client.metadata.executed == 0:
                session.act()
                waits["act"].append(1e3 * (time.perf_counter() - observed))
    return {
        f"{call}_p{percent}_ms": float(np.percentile(times[1:], percent))
        for call, times in waits.items()
        for percent in (50, 99)
    }


def trained(data: Path, setting: str, busy: int, steps: int) -> dict[str, Any]:
    """Return seconds and losses of a training."""
    options = f"--preset nano --batch 2 --action-steps 8 --log-steps 1 --steps {steps}".split()
    with tempfile.TemporaryDirectory() as folder, neighbours(busy):
        subprocess.run(
            [*CHAMELEON, "train", str(data), "--out", folder, "--device", "cpu", *options],
            env=surroundings(setting),
            capture_output=True,
            check=True,
        )
        lines = (Path(folder) / "metrics.jsonl").read_text().splitlines()
    metrics = [json.loads(line) for line in lines]
    return {
        "seconds_per_step": (metrics[-1]["seconds"] - metrics[0]["seconds"]) / (steps - 1),
        "losses": [line["loss"] for line in metrics],
    }


def main(
    ticks: int = 100, steps: int = 12, data: Path | None = None, out: Path | None = None
) -> None:
    """Measure, print, and write the result.

    Args:
        ticks: Observations that each server answers.
        steps: Steps of each training, at least 2.
        data: Demonstrations with pictures; by default four are recorded.
        out: File to write; runs/busy.json by default.
    """
    path = out or Path("runs") / "busy.json"
    torch.manual_seed(SEED)
    rows: list[dict[str, Any]] = []
    losses: list[list[float]] = []
    with tempfile.TemporaryDirectory() as folder, demonstrations(data, 4, workers=1) as recorded:
        policy = ChameleonPolicy(preset("nano"), STATE, with_control_jepa=False)
        policy.save_pretrained(folder)
        for busy in (0, 1):
            for setting in SETTINGS:
                row = {"neighbours": busy, "threads": setting}
                row |= served(Path(folder), setting, busy, ticks)
                row |= trained(recorded, setting, busy, steps)
                losses.append(row.pop("losses"))
                rows.append(row)
    if any(other != losses[0] for other in losses):
        raise RuntimeError(f"the losses differ: {losses}")
    result = {"rate": RATE, "ticks": ticks, "steps": steps, "losses": losses[0], "rows": rows}
    write_result(path, result, command=with_arguments(COMMAND), seeds=[SEED])
    print_result(rows)
    print(f"Written to {path}")


def print_result(rows: list[dict[str, Any]]) -> None:
    """Print a table."""
    table = Table(title="Beside busy neighbours")
    for column in ("neighbours", "threads", "observe p50, p99", "act p50, p99", "s for a step"):
        table.add_column(column)
    for row in rows:
        waits = [
            f"{row[f'{call}_p50_ms']:.1f}, {row[f'{call}_p99_ms']:.1f} ms"
            for call in ("observe", "act")
        ]
        table.add_row(
            str(row["neighbours"]), row["threads"], *waits, f"{row['seconds_per_step']:.2f}"
        )
    Console().print(table)


if __name__ == "__main__":
    tyro.cli(main, prog=COMMAND)
