"""Count what kills, malformed messages and a long run change: it should be nothing.

    python -m benchmarks.reliability
    python -m benchmarks.reliability --kills 5 --messages 2000 --soak-minutes 1

Training is killed at random moments and resumed; evaluation workers are killed; a server receives
malformed messages; robots come and go at a server, some without a goodbye. The helpers are those
of the tests.
"""

from __future__ import annotations

import random
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
import tyro

from benchmarks import with_arguments
from benchmarks.serving import STATE, STEPS, server_process
from benchmarks.serving_client import observation
from chameleon_client import Client
from chameleon_policy import ChameleonPolicy, Features, ObjectSlots, Range, Statistics, preset
from chameleon_policy.camo.settings import CamoSettings
from chameleon_policy.evaluate.evaluation import FIRST_SEED, evaluation_seeds
from chameleon_policy.evaluate.pool import RESTARTS, EnvPool, Order, Tick
from chameleon_policy.evaluate.rollouts import roll_out
from chameleon_policy.provenance import write_result
from chameleon_policy.train.metrics import METRICS, read_metrics

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from examples import make_policy
from serving_fuzz import fuzz
from training_data import chameleon, make_episodes, write_demonstrations

COMMAND = "python -m benchmarks.reliability"
OPTIONS = (
    *("--preset", "nano", "--horizon", 4, "--device", "cpu", "--batch", 4, "--optimizer", "muon"),
    *("--log-steps", 1, "--checkpoint-steps", 3, "--learning-rate", 1e-3, "--warmup-steps", 5),
)
STEPS_A_KILL = 6
ROBOTS = 4
TIMES = ("seconds", "frames_per_second", "data_wait", "step_ms")
"""Metrics that differ from run to run."""


def killed_training(kills: int, seed: int) -> dict[str, Any]:
    """Kill a training at random moments, resume it, and compare it with one that was left alone."""
    rng, moments = random.Random(seed), []
    options = (*OPTIONS, "--steps", STEPS_A_KILL * kills + 9)
    with tempfile.TemporaryDirectory() as folder:
        runs = [Path(folder) / name for name in ("alone", "killed")]
        data = write_demonstrations(Path(folder) / "demos.hdf5", make_episodes([9, 14, 6, 11, 7]))
        for number in range(kills):
            process = chameleon("train", data, "--out", runs[1], *options)
            if number % 4 == 0:  # anywhere in the start
                time.sleep(rng.uniform(0, 4))
            else:
                goal = _step(runs[1]) + rng.randint(1, STEPS_A_KILL)
                while _step(runs[1]) < goal and process.poll() is None:
                    time.sleep(0.002)
                time.sleep(rng.uniform(0, 0.1))
            process.kill()
            process.communicate()
            moments.append(_step(runs[1]))
        for run in runs:
            process = chameleon("train", data, "--out", run, *options)
            _, said = process.communicate()
            if process.returncode not in (0, 3):
                raise RuntimeError(said)
        lines = [[_lasting(line) for line in read_metrics(run / METRICS)] for run in runs]
        files = [sorted(run.rglob("*.safetensors")) for run in runs]
        tensors = [
            {
                (path.name, name): value
                for path in paths
                for name, value in safetensors.torch.load_file(path).items()
            }
            for paths in files
        ]
    differing = [
        name
        for name in tensors[0].keys() | tensors[1].keys()
        if not _equal(tensors[0].get(name), tensors[1].get(name))
    ]
    return {
        "kills": kills,
        "killed_at_steps": moments,
        "lines_of_metrics": len(lines[0]),
        "differing_lines": sum(one != other for one, other in zip(*lines, strict=True)),
        "tensors": len(tensors[0]),
        "differing_tensors": len(differing),
    }


def _step(run: Path) -> int:
    lines = read_metrics(run / METRICS)
    return int(lines[-1]["step"]) if lines else 0


def _lasting(line: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in line.items() if name not in TIMES}


def _equal(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    return one is not None and other is not None and torch.equal(one, other)


class KilledWorkers(EnvPool):
    """Environments whose workers are killed before certain control steps, in turn."""

    def __init__(self, *options: Any, kill_at: Sequence[int]) -> None:
        super().__init__(*options)
        self.kill_at, self.steps, self.killed = kill_at, 0, 0

    def advance(self, order: Order) -> dict[int, Tick]:
        """Take a control step."""
        self.steps += 1
        if self.steps in self.kill_at:
            process = self._workers[self.killed % len(self._workers)].process
            process.kill()
            process.join()
            self.killed += 1
        return super().advance(order)


def killed_workers(kills: int, seed: int) -> dict[str, Any]:
    """Kill workers of evaluations at random moments, and compare what was played."""
    rng = random.Random(seed)
    settings = CamoSettings(task="clean-plate", observation="state")
    seeds = evaluation_seeds(FIRST_SEED, 3)
    low, high = (0.3, -0.3, 0.1, *[-1.0] * 6, 0.0), (0.6, 0.3, 0.4, *[1.0] * 7)
    features = Features(
        objects=ObjectSlots(count=5, size=7), proprioception=10, action=10, horizon=8
    )
    torch.manual_seed(seed)
    statistics = Statistics(action=Range(low=low, high=high))
    policy = ChameleonPolicy(preset("nano"), features, statistics, with_control_jepa=False).eval()
    with EnvPool(settings, 2, 0) as pool:
        expected = roll_out(policy, pool, seeds, steps=2)
    steps = sum(len(rollout.actions) for rollout in expected) // 2
    killed = differing = evaluations = 0
    while killed < kills:
        kill_at = rng.sample(range(2, steps), min(kills - killed, RESTARTS))
        with KilledWorkers(settings, 2, 2, kill_at=kill_at) as pool:
            rollouts = roll_out(policy, pool, seeds, steps=2)
            killed, evaluations = killed + pool.killed, evaluations + 1
        differing += sum(
            one.played != other.played or not np.array_equal(one.actions, other.actions)
            for one, other in zip(rollouts, expected, strict=True)
        )
    return {
        "kills": killed,
        "episodes": evaluations * len(seeds),
        "differing_episodes": differing,
    }


def malformed_messages(messages: int, seed: int) -> dict[str, Any]:
    """Send a server malformed messages; it has to refuse each of them, and nothing else."""
    policy = make_policy().eval()
    with server_process(policy, "cpu", 1) as (url, process):
        before = _resident(process)
        fuzzer = fuzz(url, messages, seed)
        healthy = _healthy(url)
        return {
            "messages": messages,
            "refused": fuzzer.refused,
            "healthy_after": healthy,
            "mib_before": before,
            "mib_after": _resident(process),
        }


def soak(minutes: float, seed: int) -> dict[str, Any]:
    """Let robots come and go at a server; compare an episode again and again with its first run."""
    torch.manual_seed(seed)
    policy = ChameleonPolicy(preset("nano"), STATE, with_control_jepa=False).eval()
    until = time.monotonic() + 60 * minutes
    counts = {"episodes": 0, "dropped": 0, "ticks": 0, "differing_chunks": 0}
    memory, errors, lock = [], [], threading.Lock()
    with server_process(policy, "cpu", 1) as (url, process):

        def robot(number: int) -> None:
            rng = random.Random(1000 * seed + number)
            expected: list[np.ndarray] | None = None
            try:
                while time.monotonic() < until:
                    chunks, ticks, dropped = _episode(url, seed, rng)
                    expected = chunks if expected is None else expected
                    differing = sum(
                        not np.allclose(one, other, atol=1e-4)
                        for one, other in zip(chunks, expected, strict=False)
                    )
                    with lock:
                        counts["episodes"] += 1
                        counts["dropped"] += dropped
                        counts["ticks"] += ticks
                        counts["differing_chunks"] += differing
            except (OSError, ValueError) as error:
                errors.append(f"{type(error).__name__}: {error}")

        robots = [threading.Thread(target=robot, args=(number,)) for number in range(ROBOTS)]
        for each in robots:
            each.start()
        while any(each.is_alive() for each in robots):
            memory.append(_resident(process))
            time.sleep(1)
        for each in robots:
            each.join()
        healthy = _healthy(url)
    third = len(memory) // 3
    return {
        "minutes": minutes,
        "robots": ROBOTS,
        **counts,
        "errors": errors,
        "healthy_after": healthy,
        "mib_after_a_third": max(memory[: third + 1]),
        "mib_at_the_end": memory[-1],
    }


def _episode(url: str, seed: int, rng: random.Random) -> tuple[list[np.ndarray], int, bool]:
    """Play an episode up to a random tick; return chunks, ticks, and whether it was left open."""
    length, chunks, dropped = rng.randint(8, 60), [], rng.random() < 0.3
    arrays = np.random.default_rng(seed)  # every episode sees the same
    with Client(url, timeout=60) as client:
        session = client.open(seed=seed)
        for tick in range(length):
            session.observe(**observation(client.metadata, arrays))
            if tick % 8 == 0:
                chunks.append(session.act(steps=STEPS))
        if not dropped:
            session.close()
    return chunks, length, dropped


def _healthy(url: str) -> bool:
    address = url.replace("ws://", "http://").rstrip("/") + "/healthz"
    with urllib.request.urlopen(address, timeout=30) as answer:
        return bool(answer.status == 200)


def _resident(process: Any) -> int:
    """Return the resident memory of a process in MiB."""
    for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) // 1024
    raise ProcessLookupError(f"process {process.pid} has ended")


def main(
    kills: int = 20,
    worker_kills: int = 20,
    messages: int = 100_000,
    soak_minutes: float = 10.0,
    seed: int = 0,
    out: Path = Path("runs/reliability.json"),
) -> None:
    """Run all checks and write their counts.

    Args:
        kills: Kills of a training.
        worker_kills: Kills of evaluation workers.
        messages: Malformed messages.
        soak_minutes: How long robots come and go.
        seed: Seed of moments, messages and robots.
        out: Result file.
    """
    checks: dict[str, Callable[[], dict[str, Any]]] = {
        "killed_training": lambda: killed_training(kills, seed),
        "killed_workers": lambda: killed_workers(worker_kills, seed),
        "malformed_messages": lambda: malformed_messages(messages, seed),
        "soak": lambda: soak(soak_minutes, seed),
    }
    result = {}
    for name, check in checks.items():
        started = time.monotonic()
        result[name] = {**check(), "seconds": round(time.monotonic() - started, 1)}
        print(f"{name}: {result[name]}", flush=True)
    write_result(out, result, command=with_arguments(COMMAND), seeds=[seed])


if __name__ == "__main__":
    tyro.cli(main)
