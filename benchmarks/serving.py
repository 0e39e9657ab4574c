"""Measure ticks per second of the policy server by the number of clients.

    python -m benchmarks.serving
    LEROBOT_PYTHON=.lerobot-venv/bin/python python -m benchmarks.serving    # and LeRobot's server

The server is a process, and so is every client. Clients are robots that never wait: a new tick as
soon as the last one is answered, a chunk (8 sampling steps) whenever one is used up. All of them
share this machine's cores with the server. Policies compute with `--threads` of them, also in the
loop without a network, which is measured for comparison.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
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
from benchmarks.inputs import random_observation
from benchmarks.serving_client import observation
from chameleon_client import Client
from chameleon_policy import ChameleonPolicy, Features, ObjectSlots, Observation, preset
from chameleon_policy.baselines import load_policy
from chameleon_policy.policy import VisuomotorPolicy
from chameleon_policy.provenance import write_result

COMMAND = "python -m benchmarks.serving"
SEED = 0
STEPS = 8
CLIENTS = (1, 2, 4, 8, 16)
WARM_UP = 0.5
STATE = Features(objects=ObjectSlots(count=6, size=13), proprioception=10, action=10, horizon=8)
"""Features of a Camo task without pictures."""
SERVER = """
import sys
from chameleon_policy.serve import ServerSettings, serve
announce = lambda message: print(message, flush=True)
serve(sys.argv[1], ServerSettings(port=0), device=sys.argv[2], announce=announce)
"""


def policies() -> dict[str, VisuomotorPolicy]:
    """Return a policy with two 128 x 128 pictures, and one so small that the network counts."""
    torch.manual_seed(SEED)
    return {
        "camo-small, 2 x 128 x 128": load_policy("camo-small").float(),
        "nano, object slots": ChameleonPolicy(
            preset("nano"), STATE, with_control_jepa=False
        ).eval(),
    }


def in_process(policy: VisuomotorPolicy, seconds: float) -> dict[str, float]:
    """Run the same loop without a network, with a batch of one."""
    seen = random_observation(policy.features, (1,), torch.Generator().manual_seed(SEED))
    state = policy.observe(seen, policy.initial_state(1))
    policy.act(state, steps=STEPS)
    waits: dict[str, list[float]] = {"observe": [], "act": []}
    begin, tick = time.perf_counter(), 0
    while (now := time.perf_counter()) < begin + seconds:
        state = policy.observe(seen.to(policy.device), state)
        state.steps.tolist()  # waits for a GPU
        observed = time.perf_counter()
        waits["observe"].append(1e3 * (observed - now))
        if tick % policy.executed == 0:
            policy.act(state, steps=STEPS).cpu()
            waits["act"].append(1e3 * (time.perf_counter() - observed))
        tick += 1
    return {"ticks_per_second": tick / (time.perf_counter() - begin), **_percentiles([waits])}


@contextmanager
def server(policy: VisuomotorPolicy, device: str, threads: int) -> Iterator[str]:
    """Run a server process for a policy; yield its URL."""
    with server_process(policy, device, threads) as (url, _):
        yield url


@contextmanager
def server_process(
    policy: VisuomotorPolicy, device: str, threads: int
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run a server process for a policy; yield its URL and the process."""
    with tempfile.TemporaryDirectory() as folder:
        policy.save_pretrained(Path(folder) / "policy")
        command = [sys.executable, "-c", SERVER, f"{folder}/policy", device]
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        try:
            assert process.stdout is not None
            said = process.stdout.readline()
            if " at ws://" not in said:
                raise RuntimeError(f"the server did not start: {said or process.wait()}")
            yield said.partition(" at ")[2].partition(",")[0], process
        finally:
            process.terminate()
            process.wait()


def overhead(policy: VisuomotorPolicy, url: str, seconds: float) -> float:
    """Return the milliseconds that the network adds to an `observe`: a median of differences."""
    differences: list[float] = []
    with Client(url, timeout=120) as client:
        session = client.open(seed=SEED)
        arrays = observation(client.metadata, np.random.default_rng(SEED))
        seen, state = Observation.single(**arrays), policy.initial_state(1)
        begin = time.perf_counter()
        while (start := time.perf_counter()) < begin + seconds or len(differences) < 5:
            session.observe(**arrays)
            arrived = time.perf_counter()
            state = policy.observe(seen.to(policy.device), state)
            state.steps.tolist()  # waits for a GPU
            differences.append(1e3 * (2 * arrived - start - time.perf_counter()))
    return float(np.median(differences[1:]))


def with_clients(url: str, count: int, seconds: float) -> dict[str, Any]:
    """Run a number of robots at once."""
    arguments = [str(seconds), str(WARM_UP), str(STEPS)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    robots = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.serving_client", url, str(seed), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for seed in range(count)
    ]
    for robot in robots:
        assert robot.stdout is not None
        if robot.stdout.readline().strip() != "ready":
            raise RuntimeError("a client did not start")
    before = _health(url)
    for robot in robots:
        assert robot.stdin is not None
        robot.stdin.write("go\n")
        robot.stdin.flush()
    waits = [json.loads(robot.communicate()[0]) for robot in robots]
    after = _health(url)
    return {
        "clients": count,
        "ticks_per_second": sum(len(each["observe"]) for each in waits) / seconds,
        "mean_batch": (after["ticks"] - before["ticks"]) / (after["batches"] - before["batches"]),
        **_percentiles(waits),
    }


def lerobot(seconds: float, threads: int) -> dict[str, Any] | None:
    """Measure LeRobot's policy server by a Python that has it; None without one."""
    python = os.environ.get("LEROBOT_PYTHON")
    if python is None:
        print(
            "LeRobot's server is left out: set LEROBOT_PYTHON to a Python that has it; "
            "scripts/lerobot-venv makes one"
        )
        return None
    script = Path(__file__).with_name("lerobot_server_peer.py").resolve()
    with tempfile.TemporaryDirectory() as folder:  # it writes logs where it is started
        command = [str(Path(python).absolute()), str(script), str(seconds)]
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300
        )
    if done.returncode != 0:
        raise RuntimeError(f"LeRobot's server could not be measured:\n{done.stderr[-3000:]}")
    measured: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return measured


def _health(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{url.replace('ws://', 'http://')}/healthz", timeout=30) as answer:
        health: dict[str, Any] = json.load(answer)
    return health


def _percentiles(waits: list[dict[str, list[float]]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for call in ("observe", "act"):
        times = [wait for each in waits for wait in each[call]]
        found |= {
            f"{call}_p{percent}_ms": float(np.percentile(times, percent)) for percent in (50, 99)
        }
    return found


def main(
    device: str = "cpu",
    seconds: float = 5.0,
    clients: tuple[int, ...] = CLIENTS,
    threads: int = 1,
    out: Path | None = None,
) -> None:
    """Measure, print, and write the result.

    Args:
        device: Where the policy computes, cpu or cuda.
        seconds: Duration of each measurement.
        clients: Numbers of clients.
        threads: Threads of the policy on a CPU.
        out: File to write; runs/serving-<device>.json by default.
    """
    path = out or Path("runs") / f"serving-{device}.json"
    torch.set_num_threads(threads)
    command = with_arguments(COMMAND)
    result: dict[str, Any] = {
        "seconds": seconds,
        "threads": threads,
        "sampling_steps": STEPS,
        "policies": {},
    }
    for name, policy in policies().items():
        alone = in_process(policy.to(device), seconds)
        with server(policy, device, threads) as url:
            added = overhead(policy, url, seconds)
            served = [with_clients(url, count, seconds) for count in clients]
        result["policies"][name] = {"in_process": alone, "overhead_ms": added, "server": served}
        write_result(path, result, command=command, seeds=[SEED])
    result["lerobot"] = lerobot(seconds, threads)
    write_result(path, result, command=command, seeds=[SEED])
    print_result(result)
    print(f"Written to {path}")


def print_result(result: dict[str, Any]) -> None:
    """Print a table of all policies and numbers of clients, and the cost of the network."""
    table = Table(title="Ticks per second and waits in ms (median, 99th percentile)")
    for column in ("policy", "clients", "ticks/s", "observe", "act", "batch"):
        table.add_column(column)
    for name, measured in result["policies"].items():
        alone = {"clients": "in process", "mean_batch": 1, **measured["in_process"]}
        for row in (alone, *measured["server"]):
            waits = [
                f"{row[f'{call}_p50_ms']:.1f}, {row[f'{call}_p99_ms']:.1f}"
                for call in ("observe", "act")
            ]
            ticks, batch = f"{row['ticks_per_second']:.0f}", f"{row['mean_batch']:.1f}"
            table.add_row(name, str(row["clients"]), ticks, *waits, batch)
    Console().print(table)
    for name, measured in result["policies"].items():
        print(f"{name}: the network adds {measured['overhead_ms']:.2f} ms to an observe")
    if result["lerobot"]:
        print(f"LeRobot's server: {json.dumps(result['lerobot'], indent=2)}")


if __name__ == "__main__":
    tyro.cli(main, prog=COMMAND)
