"""`chameleon reproduce`: a policy trained by the recipe, compared with the published scores.

Existing parts of the folder are kept, so that the same command continues after an interruption.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.table import Table

from chameleon_policy.baselines import load_policy
from chameleon_policy.console import check_counts
from chameleon_policy.data.schema import INFO_PATH
from chameleon_policy.evaluate.evaluation import FIRST_SEED, evaluation_seeds
from chameleon_policy.experiments.pipeline import (
    HELD_OUT,
    SCORES,
    SuiteName,
    Workspace,
    choose_tasks,
    recipe_for,
)
from chameleon_policy.policy.presets import PresetName
from chameleon_policy.provenance import read_result
from chameleon_policy.rates import Rate, interval
from chameleon_policy.suite import DEFAULT_SUITE, PAPER_TASKS, full_name, suite_named
from chameleon_policy.train.checkpoint import POLICY, RUN_SETTINGS
from chameleon_policy.train.metrics import METRICS, read_metrics
from chameleon_policy.train.sampling import balanced_pass

RESULTS = Path(__file__).parents[3] / "docs/results"
"""Published results, in a checkout; an installed package has none."""
HELD_OUT_EVALUATIONS = 10
"""Evaluations on held-out demonstrations during training."""
RATES = ("msr", "dsr", "sr")
EULER_STEPS = 8
"""Euler steps of a chunk. The paper has 50; the nano policy scores the same with 1 to 50
(docs/results/euler-steps.json).
"""


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """The policy to reproduce and its evaluation."""

    suite: tyro.conf.Positional[SuiteName]
    """Suite of tasks."""
    tasks: Annotated[
        tuple[str, ...], tyro.conf.arg(name="task", metavar="TASK"), tyro.conf.UseAppendAction
    ] = ()
    """clean-plate, shell-game, seasonings or pantry; give it again for another (default: the
    first three, as published). One policy learns all of them."""
    minutes: float = 20.0
    """Minutes of training."""
    demonstrations: int = 120
    """Expert episodes of each task to learn from; the paper has 120."""
    preset: PresetName = "small"
    """Size of the policy."""
    image_size: int = 128
    """Height and width of the images."""
    episodes: int = 200
    """Held-out episodes of each task."""
    seed: int = 0
    """Seed of demonstrations and training; held-out episodes stay the same."""

    def __post_init__(self) -> None:
        tasks = self.tasks or _published_tasks(self.suite)
        object.__setattr__(self, "tasks", choose_tasks(self.suite, tasks))
        check_counts(episodes=self.episodes)

    @property
    def name(self) -> str:
        """The suite, or the tasks where they are others; part of the folder's name."""
        usual = self.tasks == _published_tasks(self.suite)
        return self.suite if usual else "-".join(self.tasks)


def _published_tasks(suite: str) -> tuple[str, ...]:
    """Return the tasks of a suite's published scores."""
    return PAPER_TASKS if suite == DEFAULT_SUITE else suite_named(suite).tasks


def reproduce(config: Reproduction, workspace: Workspace) -> dict[str, Any]:
    """Record, train, evaluate and compare.

    Return the scores, which are also written to scores.json.
    """
    suite, out = suite_named(config.suite), workspace.out
    # Wrong options are refused here, before the long work.
    run = recipe_for(config.suite, "rgb").run(
        data=tuple(out / "data" / task for task in config.tasks),
        held_out=tuple(out / "held-out" / task for task in config.tasks),
        training={
            "minutes": config.minutes,
            "seed": config.seed,
            "watch_times": HELD_OUT_EVALUATIONS,
            "watch_episodes": 0,
        },
        preset=config.preset,
    )
    recordings = {
        out / name / task: suite.recording(
            task, episodes=episodes, seed=seed, image_size=config.image_size
        )
        for name, episodes, seed in (
            ("data", config.demonstrations, config.seed),
            ("held-out", HELD_OUT, config.seed + 1),
        )
        for task in config.tasks
    }
    workspace.record(recordings)
    workspace.train(run, out / "run")
    _export(out)
    seeds = evaluation_seeds(FIRST_SEED, config.episodes)
    result: dict[str, Any] = {**_training(config, out), "tasks": {}}
    result["tasks"] = _scored_before(out / SCORES, result, config.episodes)
    for task in config.tasks:
        if task not in result["tasks"]:
            result["tasks"][task] = _score(config, task, seeds, workspace)
            # after every task, so that an interrupted command keeps its scores
            workspace.write(result, seeds)
    for task in config.tasks:
        workspace.console.print(_comparison(task, result, published(config)))
    return result


def published_file(suite: str) -> Path:
    """Return the file of the published scores of a suite."""
    return RESULTS / f"{suite}-chameleon.json"


def published(config: Reproduction) -> dict[str, Any] | None:
    """Return the published scores of a policy from as many demonstrations, if there are any."""
    path = published_file(config.suite)
    if not path.is_file():
        return None
    headline = read_result(path)
    found: dict[str, Any] | None = {
        str(headline["demonstrations"]): headline,
        **headline["tracks"],
    }.get(str(config.demonstrations))
    return found


def _export(out: Path) -> None:
    """Save the policy as it is shipped and scored: in half precision, with few Euler steps."""
    policy = load_policy(out / "run" / POLICY).bfloat16()
    policy.config = replace(policy.config, sampling_steps=EULER_STEPS)
    policy.save_pretrained(out / "policy")


def _score(
    config: Reproduction, task: str, seeds: list[int], workspace: Workspace
) -> dict[str, Any]:
    started = time.perf_counter()
    evaluation = workspace.play(workspace.out / "policy", full_name(config.suite, task), seeds)
    wall_seconds = time.perf_counter() - started
    return {**evaluation.as_dict(), "euler_steps": EULER_STEPS, "wall_seconds": wall_seconds}


def _scored_before(path: Path, training: dict[str, Any], episodes: int) -> dict[str, Any]:
    """Return the scores of tasks that the same policy has already played in the same way."""
    if not path.is_file():
        return {}
    before = read_result(path)
    if {**before, "tasks": {}} != training:
        return {}
    settings = {"episodes": episodes, "euler_steps": EULER_STEPS}
    try:
        return {
            task: scores
            for task, scores in before["tasks"].items()
            if settings.items() <= scores.items()
        }
    except (KeyError, AttributeError) as error:
        raise ValueError(f"{path} is damaged ({error!r}); move it away") from error


def _training(config: Reproduction, out: Path) -> dict[str, Any]:
    """Return the settings and the cost of the training."""
    lines = read_metrics(out / "run" / METRICS)
    steps = [line for line in lines if "loss" in line]
    return {
        "preset": config.preset,
        "image_size": config.image_size,
        "demonstrations": config.demonstrations,
        "training_seed": config.seed,
        "steps": steps[-1]["step"],
        "minutes": steps[-1]["seconds"] / 60,
        "frames_seen": round(steps[-1]["step"] * _frames_per_step(config, out)),
        "looks": [line for line in lines if "held_out_action" in line],
    }


def _frames_per_step(config: Reproduction, out: Path) -> float:
    """Return the mean number of recorded frames in a batch."""
    training = json.loads((out / "run" / RUN_SETTINGS).read_text())["training"]
    info = {
        task: json.loads((out / "data" / task / INFO_PATH).read_text()) for task in config.tasks
    }
    lengths = {task: each["total_frames"] / each["total_episodes"] for task, each in info.items()}
    episodes = [task for task, each in info.items() for _ in range(each["total_episodes"])]
    if training["equal_frames"]:
        episodes = [
            episodes[number]
            for number in balanced_pass([lengths[task] for task in episodes], episodes)
        ]
    return float(training["batch"] * sum(lengths[task] for task in episodes) / len(episodes))


def _comparison(task: str, ours: dict[str, Any], theirs: dict[str, Any] | None) -> Table:
    """Return a table of the scores of a task; `theirs` are the published ones."""
    rates = [rate for rate in RATES if rate in ours["tasks"][task]]
    table = Table(title=f"{task}, {ours['demonstrations']} demonstrations")
    table.add_column("", no_wrap=True)
    table.add_column("made with")
    for rate in rates:
        table.add_column(f"{rate.upper()} %", justify="right", no_wrap=True)
    for name, result in (("here", ours), ("published", theirs)):
        if result is None or task not in result["tasks"]:
            table.add_row(name, *["-"] * (len(table.columns) - 1))
            continue
        scores = result["tasks"][task]
        number, size = len(result["tasks"]), result["image_size"]
        tasks = "this task alone" if number == 1 else f"{number} tasks"
        made = (
            f"{result['preset']}, {size} x {size}, {tasks}, "
            f"{result['minutes']:.1f} min, {result['steps']:,} steps"
        )
        table.add_row(name, made, *(interval(Rate.from_dict(scores[rate])) for rate in rates))
    return table
