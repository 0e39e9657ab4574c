"""`chameleon reproduce`: from nothing to scores, and those beside the ones that are published.

Demonstrations, one policy for all tasks that are asked for, trained by the recipe, rollouts on
held-out seeds. What is already in the folder is kept, so that the same command goes on after an
interruption.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.table import Table

from chameleon_policy.baselines import load_policy
from chameleon_policy.camo import TASKS, task_named
from chameleon_policy.camo.recording import Recording
from chameleon_policy.console import Bar
from chameleon_policy.data.schema import INFO_PATH
from chameleon_policy.device import Device, check_device
from chameleon_policy.evaluate.evaluation import FIRST_SEED, evaluation_seeds
from chameleon_policy.experiments.pipeline import play, train_once
from chameleon_policy.policy.presets import PresetName
from chameleon_policy.provenance import write_result
from chameleon_policy.rates import Rate
from chameleon_policy.recorder import record_once
from chameleon_policy.report.evaluation_table import interval
from chameleon_policy.train.checkpoint import POLICY
from chameleon_policy.train.checkpoint import SETTINGS as RUN_SETTINGS
from chameleon_policy.train.metrics import METRICS, read_metrics
from chameleon_policy.train.order import equal_frames
from chameleon_policy.train.run import RunConfig

PUBLISHED = Path(__file__).parents[3] / "docs/results/camo-chameleon.json"
"""In a checkout; elsewhere there is nothing to compare with."""
LOOKS = 10
"""At the demonstrations that are held out, during training."""
HELD_OUT = 60
RATES = ("msr", "dsr", "sr")
SCORES = "scores.json"
EULER_STEPS = 8
"""Of a chunk. The paper has 50; the nano policy scores the same with 1 to 50
(docs/results/euler-steps.json).
"""


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """What is made from nothing."""

    tasks: Annotated[tuple[str, ...], tyro.conf.arg(name="task"), tyro.conf.UseAppendAction] = ()
    """clean-plate, shell-game or seasonings; give it again for another, which the same policy
    learns (default: all three)."""
    minutes: float = 20.0
    """Training."""
    demonstrations: int = 120
    """Expert episodes of each task to learn from; the paper has 120."""
    preset: PresetName = "small"
    """Size of the policy."""
    image_size: int = 128
    """Height and width of the pictures."""
    episodes: int = 200
    """Held-out episodes of each task."""
    seed: int = 0
    """Of demonstrations and training; held-out episodes stay the same."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "tasks", self.tasks or tuple(TASKS))
        if not self.tasks or len(set(self.tasks)) < len(self.tasks):
            raise ValueError(f"--task must name each task once, got {' '.join(self.tasks)}")
        for task in self.tasks:
            task_named(task)  # or ValueError
        if self.episodes < 1:
            raise ValueError(f"--episodes must be at least 1, got {self.episodes}")

    @property
    def name(self) -> str:
        """The benchmark, or the tasks where they are not all of it; part of the folder's name."""
        return "camo" if self.tasks == tuple(TASKS) else "-".join(self.tasks)


def reproduce(
    config: Reproduction,
    out: Path,
    bar: Bar,
    console: Console,
    *,
    command: str,
    device: Device,
    workers: int,
) -> dict[str, Any]:
    """Record, train, evaluate and compare; returns the scores, which also stand in
    out/scores.json.
    """
    # Everything that can be refused is made before the long work.
    run = RunConfig.by_recipe(
        "camo",
        data=tuple(out / "data" / task for task in config.tasks),
        held_out=tuple(out / "held-out" / task for task in config.tasks),
        training={
            "minutes": config.minutes,
            "seed": config.seed,
            "watch_times": LOOKS,
            "watch_episodes": 0,
        },
        preset=config.preset,
    )
    check_device(device)
    recordings = {
        out / name / task: Recording(
            task=task, episodes=episodes, seed=seed, image_size=config.image_size
        )
        for name, episodes, seed in (
            ("data", config.demonstrations, config.seed),
            ("held-out", HELD_OUT, config.seed + 1),
        )
        for task in config.tasks
    }
    for folder, recording in recordings.items():
        record_once(recording, folder, bar, workers)
    train_once(run, out / "run", console, device=device, workers=workers)
    _export(out)
    seeds = evaluation_seeds(FIRST_SEED, config.episodes)
    result: dict[str, Any] = {**_training(config, out), "tasks": {}}
    result["tasks"] = _scored_before(out / SCORES, result, config.episodes)
    for task in config.tasks:
        if task not in result["tasks"]:
            result["tasks"][task] = _score(out / "policy", task, seeds, bar, device, workers)
            # After every task, so that a command that is cut off leaves what it has.
            write_result(out / SCORES, result, command=command, seeds=seeds)
    there = published(config.demonstrations)
    for task in config.tasks:
        console.print(_comparison(task, result, there))
    return result


def published(demonstrations: int) -> dict[str, Any] | None:
    """What is published with the project of a policy from so many demonstrations; None where there
    is nothing.
    """
    if not PUBLISHED.is_file():
        return None
    headline = json.loads(PUBLISHED.read_text())["result"]
    found: dict[str, Any] | None = {
        str(headline["demonstrations"]): headline,
        **headline["tracks"],
    }.get(str(demonstrations))
    return found


def _export(out: Path) -> None:
    """The policy as it would be shipped, and as it is scored: in half the space, with few Euler
    steps.
    """
    policy = load_policy(out / "run" / POLICY).bfloat16()
    policy.config = replace(policy.config, sampling_steps=EULER_STEPS)
    policy.save_pretrained(out / "policy")


def _score(
    policy: Path, task: str, seeds: list[int], bar: Bar, device: Device, workers: int
) -> dict[str, Any]:
    started = time.perf_counter()
    evaluation = play(policy, task, seeds, bar, device=device, workers=workers)
    wall_seconds = time.perf_counter() - started
    return {**evaluation.as_dict(), "euler_steps": EULER_STEPS, "wall_seconds": wall_seconds}


def _scored_before(path: Path, training: dict[str, Any], episodes: int) -> dict[str, Any]:
    """Tasks that the same policy has already played so often, in the same way."""
    if not path.is_file():
        return {}
    before = json.loads(path.read_text())["result"]
    same = {**before, "tasks": {}} == training
    way = {"episodes": episodes, "euler_steps": EULER_STEPS}
    return {
        task: scores
        for task, scores in before["tasks"].items()
        if same and way.items() <= scores.items()
    }


def _training(config: Reproduction, out: Path) -> dict[str, Any]:
    """What the policy cost."""
    lines = read_metrics(out / "run" / METRICS)
    steps = [line for line in lines if "loss" in line]
    looks = [line for line in lines if "held_out_action" in line]
    return {
        "preset": config.preset,
        "image_size": config.image_size,
        "demonstrations": config.demonstrations,
        "training_seed": config.seed,
        "steps": steps[-1]["step"],
        "minutes": steps[-1]["seconds"] / 60,
        "frames_seen": round(steps[-1]["step"] * _frames_of_a_step(config, out)),
        "looks": looks,
    }


def _frames_of_a_step(config: Reproduction, out: Path) -> float:
    """On average, of the demonstrations as they were recorded."""
    training = json.loads((out / "run" / RUN_SETTINGS).read_text())["training"]
    info = {
        task: json.loads((out / "data" / task / INFO_PATH).read_text()) for task in config.tasks
    }
    lengths = {task: each["total_frames"] / each["total_episodes"] for task, each in info.items()}
    episodes = [task for task, each in info.items() for _ in range(each["total_episodes"])]
    if training["equal_frames"]:
        episodes = [
            episodes[number]
            for number in equal_frames([lengths[task] for task in episodes], episodes)
        ]
    return float(training["batch"] * sum(lengths[task] for task in episodes) / len(episodes))


def _comparison(task: str, here: dict[str, Any], there: dict[str, Any] | None) -> Table:
    table = Table(title=f"{task}, {here['demonstrations']} demonstrations")
    for column in ("", "made with", "MSR %", "DSR %", "SR %"):
        table.add_column(
            column, justify="right" if "%" in column else "left", no_wrap=column != "made with"
        )
    for name, result in (("here", here), ("published", there)):
        if result is None or task not in result["tasks"]:
            table.add_row(name, *["-"] * (len(table.columns) - 1))
            continue
        scores = result["tasks"][task]
        number, size = len(result["tasks"]), result["image_size"]
        tasks = "this task alone" if number == 1 else f"{number} tasks"
        made = f"{result['preset']}, {size} x {size}, {tasks}, {result['minutes']:.1f} min, {result['steps']:,} steps"
        table.add_row(name, made, *(interval(Rate.from_dict(scores[rate])) for rate in RATES))
    return table
