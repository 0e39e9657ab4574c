"""Measure how long a robot waits for the server while another client asks for all it can.

    python -m benchmarks.fairness --out docs/results/fairness-cpu.json

The robot ticks at 7.5 Hz and asks for a chunk whenever one is used up. Its neighbour, a process of
its own, has one or more sessions on one connection and asks for chunks, or sends observations,
without a pause. Server and clients share the cores of this machine, with one thread each.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

from benchmarks import with_arguments
from benchmarks.serving import server
from benchmarks.serving_client import observation
from chameleon_client import Client
from chameleon_policy.baselines import load_policy
from chameleon_policy.provenance import write_result
from chameleon_policy.robot.clock import Clock

COMMAND = "python -m benchmarks.fairness"
SEED, RATE, STEPS = 0, 7.5, 8
NEIGHBOURS = ((0, 0), (1, 8), (1, 100), (8, 100), (8, 0))
"""Sessions of the other client, and the sampling steps of their chunks; 0: it observes."""


def ask_for_ever(url: str, sessions: int, steps: int, ready: Any) -> None:
    """Send a request in every session as soon as the last one is answered, for ever."""
    with Client(url, timeout=120) as client:
        seen = observation(client.metadata, np.random.default_rng(SEED))
        opened = [client.open(seed=SEED) for _ in range(sessions)]
        for session in opened:
            session.observe(**seen)
        requests = [
            partial(session.act_soon, steps=steps)
            if steps
            else partial(session.observe_soon, **seen)
            for session in opened
        ]
        replies: list[Future[Any]] = [request() for request in requests]
        ready.set()
        while True:
            for index, request in enumerate(requests):
                client.wait(replies[index])
                replies[index] = request()


@contextmanager
def neighbour(url: str, sessions: int, steps: int) -> Iterator[None]:
    """Run the other client for as long as the block lasts."""
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    process = context.Process(target=ask_for_ever, args=(url, sessions, steps, ready))
    if sessions:
        process.start()
        if not ready.wait(120):
            raise RuntimeError("the other client did not start")
    try:
        yield
    finally:
        if sessions:
            process.terminate()
            process.join()


def waits_of_robot(url: str, seconds: float) -> dict[str, list[float]]:
    """Play a robot at its rate; return its waits in milliseconds."""
    waits: dict[str, list[float]] = {"observe": [], "act": []}
    with Client(url, timeout=120) as client:
        seen = observation(client.metadata, np.random.default_rng(SEED + 1))
        session, clock = client.open(seed=SEED), Clock(RATE)
        for tick in range(round(seconds * RATE)):
            clock.tick()
            began = time.perf_counter()
            session.observe(**seen)
            observed = time.perf_counter()
            waits["observe"].append(1e3 * (observed - began))
            if tick % client.metadata.executed == 0:
                session.act(steps=STEPS)
                waits["act"].append(1e3 * (time.perf_counter() - observed))
    return waits


def main(seconds: float = 30.0, out: Path = Path("runs/fairness-cpu.json")) -> None:
    """Measure with every neighbour, print, and write the result.

    Args:
        seconds: Duration of each measurement.
        out: File to write.
    """
    rows = []
    with server(load_policy("camo-small").float(), "cpu", threads=1) as url:
        waits_of_robot(url, 2)  # the first computations take longest
        for sessions, steps in NEIGHBOURS:
            with neighbour(url, sessions, steps):
                waits = waits_of_robot(url, seconds)
            rows.append(
                {
                    "sessions": sessions,
                    "steps": steps,
                    **{
                        f"{call}_{name}_ms": float(value)
                        for call, times in waits.items()
                        for name, value in (
                            *zip(("p50", "p99"), np.percentile(times, (50, 99)), strict=True),
                            ("max", max(times)),
                        )
                    },
                }
            )
    result = {"rate": RATE, "sampling_steps": STEPS, "seconds": seconds, "neighbours": rows}
    write_result(out, result, command=with_arguments(COMMAND), seeds=[SEED])
    table = Table(title=f"Waits of a robot at {RATE} Hz in ms: median, 99th percentile, longest")
    for column in ("sessions beside it", "their steps", "observe", "act"):
        table.add_column(column)
    for row in rows:
        waits_cells = [
            ", ".join(f"{row[f'{call}_{name}_ms']:.0f}" for name in ("p50", "p99", "max"))
            for call in ("observe", "act")
        ]
        table.add_row(str(row["sessions"]), str(row["steps"]), *waits_cells)
    Console().print(table)
    print(f"Written to {out}")


if __name__ == "__main__":
    tyro.cli(main, prog=COMMAND)
