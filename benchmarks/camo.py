"""Measure Camo: speed of simulation, pictures and recording, and success of its experts.

python -m benchmarks.camo speed      control steps a second, pictures, recording
python -m benchmarks.camo experts    success of every expert on held-out seeds
"""

from __future__ import annotations

import os

# Read by MuJoCo's own renderer, which is the peer here, when mujoco is imported.
os.environ.setdefault("MUJOCO_GL", "egl")

import shutil
import statistics
import tempfile
import time
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal

import mujoco
import torch
import tyro
from rich.console import Console
from rich.table import Table

from benchmarks import with_arguments
from benchmarks.timing import take_turns
from chameleon_policy.camo import TASKS, CamoEnv, summarise
from chameleon_policy.camo.cameras import VIEWS
from chameleon_policy.camo.experts import make_expert
from chameleon_policy.camo.recording import Recording, demonstrate
from chameleon_policy.camo.robot import add_robot
from chameleon_policy.camo.scene import new_scene
from chameleon_policy.camo.scoring import Score
from chameleon_policy.camo.tasks import task_named
from chameleon_policy.provenance import write_result
from chameleon_policy.rates import interval
from chameleon_policy.recorder import record
from chameleon_policy.seeds import evaluation_seed

COMMAND = "python -m benchmarks.camo"
SIZE = 128
EPISODES = 3
RECORDED = 120
CPU = torch.device("cpu")


def control_steps(task: str) -> dict[str, float]:
    """Return control steps a second of whole expert episodes, with two pictures and without."""
    rates = {}
    for mode in ("rgb", "state"):
        env = CamoEnv(task, observation=mode, image_size=SIZE)
        demonstrate(env, evaluation_seed(EPISODES))  # the first pictures of a process are slow
        seconds, steps = 0.0, 0
        for index in range(EPISODES):
            env.reset(seed=evaluation_seed(index))
            expert, over = make_expert(env), False
            while not over:
                action = expert.act().executed
                start = time.perf_counter()
                _, _, terminated, truncated, _ = env.step(action)
                seconds += time.perf_counter() - start
                over, steps = terminated or truncated, steps + 1
        env.close()
        rates[f"{mode}_steps_per_second"] = steps / seconds
    return rates


def pictures_against_defaults(task: str) -> dict[str, float]:
    """Time two pictures of one scene, ours and by MuJoCo's renderer with its default quality."""
    env = CamoEnv(task, image_size=SIZE)
    env.reset(seed=evaluation_seed(0))
    for _ in range(15):
        env.step(env.action_space.sample())  # hands in the picture
    spec = new_scene(task)
    add_robot(spec)
    task_named(task)().build(spec)
    spec.visual.quality = mujoco.MjSpec().visual.quality
    for light in spec.lights:
        light.castshadow = True
    model = spec.compile()
    with mujoco.Renderer(model, SIZE, SIZE) as renderer:

        def defaults() -> None:
            for view in VIEWS:
                renderer.update_scene(env.world.data, view)
                renderer.render()

        seconds = take_turns({"ours": env.frames, "defaults": defaults}, CPU, rounds=15)
    env.close()
    return {
        "two_pictures_ms": 1e3 * seconds["ours"],
        "mujoco_defaults_ms": 1e3 * seconds["defaults"],
        "ratio": seconds["defaults"] / seconds["ours"],
    }


def recording_time(workers: int) -> dict[str, Any]:
    """Time 120 shell-game demonstrations, from the command to the finished dataset."""
    folder = Path(tempfile.mkdtemp())
    start = time.perf_counter()
    record(
        Recording(task="shell-game", episodes=RECORDED, image_size=SIZE),
        folder / "dataset",
        workers=workers,
    )
    seconds = time.perf_counter() - start
    shutil.rmtree(folder)
    return {
        "task": "shell-game",
        "episodes": RECORDED,
        "image_size": SIZE,
        "workers": workers,
        "seconds": seconds,
    }


def speed(workers: int) -> dict[str, Any]:
    """Take all timings and print each as it is done."""
    table = Table(title=f"Camo on this machine, two {SIZE} x {SIZE} cameras, one process")
    columns = (
        "task",
        "steps/s with pictures",
        "steps/s, state",
        "two pictures",
        "MuJoCo's default quality",
    )
    for column in columns:
        table.add_column(column, justify="left" if column == "task" else "right")
    tasks = {}
    for task in TASKS:
        row = control_steps(task) | pictures_against_defaults(task)
        tasks[task] = row
        table.add_row(
            task,
            f"{row['rgb_steps_per_second']:.0f}",
            f"{row['state_steps_per_second']:.0f}",
            f"{row['two_pictures_ms']:.1f} ms",
            f"{row['ratio']:.1f} x as long",
        )
    Console().print(table)
    recorded = recording_time(workers)
    print(f"{RECORDED} demonstrations with {workers} processes: {recorded['seconds']:.0f} s")
    return {"image_size": SIZE, "tasks": tasks, "recording": recorded}


def _play(arguments: tuple[str, int]) -> tuple[Score, int]:
    task, index = arguments
    demonstration = demonstrate(CamoEnv(task, observation="state"), evaluation_seed(index))
    return demonstration.score, len(demonstration.actions)


def experts(episodes: int, workers: int) -> dict[str, Any]:
    """Score every expert on evaluation seeds, with its disturbance."""
    result = {}
    with get_context("spawn").Pool(workers) as pool:
        for task in TASKS:
            played = pool.map(_play, [(task, index) for index in range(episodes)], chunksize=5)
            summary = summarise([score for score, _ in played], task_named(task)().chance)
            lengths = [length for _, length in played]
            steps = {
                "shortest": min(lengths),
                "median": statistics.median(lengths),
                "longest": max(lengths),
            }
            result[task] = {**summary.as_dict(), "control_steps": steps}
            print(f"{task}: SR {interval(summary.sr)}, {summary.reasons}")
    return result


def main(
    what: tyro.conf.Positional[Literal["speed", "experts"]] = "speed",
    episodes: int = 200,
    workers: int = 2,
    out: Path | None = None,
) -> None:
    """Measure, print, and write the result.

    Args:
        what: Timings, or the experts' success.
        episodes: Episodes per task for the experts.
        workers: Processes.
        out: File to write; runs/camo-<what>.json by default.
    """
    seeds = range(EPISODES if what == "speed" else episodes)
    result = speed(workers) if what == "speed" else experts(episodes, workers)
    path = out or Path("runs") / f"camo-{what}.json"
    command = with_arguments(COMMAND)
    write_result(path, result, command=command, seeds=[evaluation_seed(index) for index in seeds])
    print(f"Written to {path}")


if __name__ == "__main__":
    tyro.cli(main, prog=COMMAND)
