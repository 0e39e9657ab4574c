"""Measure the robot loop in simulation: scores, delays and missed ticks at several rates.

    python -m benchmarks.robot_loop --out docs/results/robot-loop.json

A server with the shipped policy runs on this machine, and so does the simulated robot; below 10 Hz
two of them at a time. Scores stand next to those of an evaluation in one process. Finished runs in
`--folder` are kept, so that the same command goes on. Leave the machine alone meanwhile.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from time import sleep
from typing import Any

import tyro

from benchmarks import with_arguments
from chameleon_policy.provenance import write_result
from chameleon_policy.seeds import EVALUATION_SEEDS
from chameleon_policy.suite import PAPER_TASKS

COMMAND = "python -m benchmarks.robot_loop"
POLICY, STEPS = "camo-small", 8
CHAMELEON = (sys.executable, "-m", "chameleon_policy.cli")
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}
"""Server and simulation share few cores: one thread each."""
ORIGIN = ("command", "hardware", "git_revision", "duration_s")
"""Provenance that is kept of every run."""


@contextmanager
def server(port: int) -> Iterator[str]:
    """Run `chameleon serve` in its own process; yield its URL."""
    process = subprocess.Popen([*CHAMELEON, "serve", POLICY, "--port", str(port)], env=ENVIRONMENT)
    try:
        while not _healthy(port):
            sleep(0.5)
            if process.poll() is not None:
                raise RuntimeError(f"the server ended with {process.returncode}")
        yield f"ws://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def _healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, ConnectionError):
        return False


def run(file: Path, episodes: int, *words: object) -> dict[str, Any]:
    """Return the JSON result of a command, and run it only if there is none yet."""
    if not file.exists():
        options = ("--episodes", episodes, "--steps", STEPS, "--json", file)
        subprocess.run([*CHAMELEON, *map(str, (*words, *options))], check=True, env=ENVIRONMENT)
    document: dict[str, Any] = json.loads(file.read_text())
    result = document["result"]
    played = result.get("scores", result).get("rollouts", [])
    if result.get("stopped") or len(played) != episodes:
        raise ValueError(
            f"{file} holds {len(played)} episodes of {episodes} ({result.get('stopped')}); "
            "delete it to play again"
        )
    return document


def scores(result: dict[str, Any]) -> dict[str, Any]:
    """Return rates, and the seeds that succeeded."""
    succeeded = [
        each["seed"] for each in result["rollouts"] if each["manipulation"] and each["decision"]
    ]
    return {**{name: result[name] for name in ("msr", "dsr", "sr")}, "succeeded": succeeded}


def main(
    episodes: int = 36,
    rates: tuple[float, ...] = (7.5, 30.0),
    tasks: tuple[str, ...] = PAPER_TASKS,
    folder: Path = Path("runs/robot-loop"),
    port: int = 8799,
    out: Path = Path("runs/robot-loop.json"),
) -> None:
    """Play all episodes and write the result.

    Args:
        episodes: Episodes of each task, at each rate.
        rates: Ticks per second.
        tasks: Tasks of Camo.
        folder: Folder for the files of the single runs; finished runs in it are kept.
        port: Port of the server.
        out: JSON file to write.
    """
    folder.mkdir(parents=True, exist_ok=True)
    in_process = {
        task: run(folder / f"in-process-{task}.json", episodes, "eval", POLICY, "--task", task)
        for task in tasks
    }
    with server(port) as url:
        loops = {f"{rate:g}": play(url, rate, tasks, episodes, folder) for rate in rates}
    documents = [*in_process.values(), *(each for loop in loops.values() for each in loop.values())]
    result = {
        "policy": POLICY,
        "episodes": episodes,
        "in_process": {task: scores(each["result"]) for task, each in in_process.items()},
        "rates": {
            rate: {
                task: {**scores(each["result"]["scores"]), "loop": each["result"]["loop"]}
                for task, each in loop.items()
            }
            for rate, loop in loops.items()
        },
        "runs": [{name: each[name] for name in ORIGIN} for each in documents],
    }
    seeds = list(EVALUATION_SEEDS[:episodes])
    write_result(out, result, command=with_arguments(COMMAND), seeds=seeds)
    print(f"Written: {out}")


def play(
    url: str, rate: float, tasks: Sequence[str], episodes: int, folder: Path
) -> dict[str, dict[str, Any]]:
    """Return the result of the robot loop at one rate, by task."""

    def play_task(task: str) -> dict[str, Any]:
        file = folder / f"loop-{rate:g}-{task}.json"
        return run(file, episodes, "run", "--server", url, "--task", task, "--rate", rate)

    # Below 10 Hz there is time for two robots at once.
    with ThreadPoolExecutor(2 if rate < 10 else 1) as lanes:
        return dict(zip(tasks, lanes.map(play_task, tasks), strict=True))


if __name__ == "__main__":
    tyro.cli(main, prog=COMMAND)
