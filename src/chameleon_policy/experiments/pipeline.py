"""The steps of every experiment: record once, train once, play, write.

Each step keeps existing files, so that the same command continues after an interruption.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, cast

import tyro
from rich.console import Console

from chameleon_policy.console import Bar, Terminal, check_counts, check_unique, progress_bar
from chameleon_policy.device import Device, find_device
from chameleon_policy.evaluate.evaluation import Evaluation, evaluate
from chameleon_policy.evaluate.loading import load_for_evaluation
from chameleon_policy.exit_codes import STOPPED
from chameleon_policy.provenance import write_result
from chameleon_policy.recorder import record_once
from chameleon_policy.suite import SUITES, Mode, RecordingSettings, suite_named
from chameleon_policy.train.config import RunConfig
from chameleon_policy.train.recipes import RECIPES, Recipe, RecipeName
from chameleon_policy.train.training import AlreadyTrainedError, train
from chameleon_policy.writing import check_folder

SuiteName = Annotated[
    str, tyro.conf.arg(constructor=tyro.extras.literal_type_from_choices(tuple(SUITES)))
]
"""One of `SUITES`, with these choices on the command line."""
SCORES = "scores.json"
HELD_OUT = 60
"""Demonstrations of each task on which a policy is evaluated while it is trained."""


@dataclass(frozen=True, kw_only=True)
class Workspace:
    """The folder, the machine and the terminal of an experiment."""

    out: Path
    """Folder for everything that is made."""
    command: str
    """The command that was typed, for the results."""
    device: Device = "auto"
    workers: int = 2
    """Processes that record and evaluate, and threads that read in training."""
    bar: Bar = progress_bar
    console: Console = field(default_factory=Terminal)

    def __post_init__(self) -> None:
        check_counts(workers=self.workers)
        if self.out.exists() and not self.out.is_dir():
            raise ValueError(f"--out must name a folder, and {self.out} is a file")
        find_device(self.device)  # or ValueError
        check_folder(self.out, "--out")

    def record(self, recordings: Mapping[Path, RecordingSettings]) -> None:
        """Record demonstrations that are missing."""
        for folder, recording in recordings.items():
            record_once(recording, folder, self.bar, self.workers)

    def train(self, run: RunConfig, folder: Path) -> None:
        """Train unless the budget is spent; SystemExit if a signal asked to stop."""
        try:
            signal = train(
                run, folder, device=self.device, workers=self.workers, console=self.console
            )
        except AlreadyTrainedError:
            self.say(f"{folder} is trained already.")
            return
        if signal is not None:
            self.say(f"Stopped and saved; the same command goes on with {folder}.")
            raise SystemExit(STOPPED + signal)

    def play(self, policy: Path, task: str, seeds: Sequence[int], **options: Any) -> Evaluation:
        """Play one episode for every seed; `options` are those of `evaluate`."""
        loaded, settings = load_for_evaluation(policy, task, self.device)
        with self.bar(f"{policy.name} plays {settings.task}", len(seeds)) as advance:
            return evaluate(
                loaded, settings, seeds, workers=self.workers, progress=advance, **options
            )

    def write(self, result: Mapping[str, Any], seeds: Sequence[int]) -> None:
        """Write the scores of the experiment, with their provenance."""
        write_result(self.out / SCORES, dict(result), command=self.command, seeds=seeds)

    def say(self, text: str) -> None:
        """Print a line, as long as it is."""
        self.console.print(text, soft_wrap=True)


def recipe_for(suite: str, observation: Mode) -> Recipe:
    """Return the recipe for training on a suite's observations; ValueError if it has none."""
    recipes = suite_named(suite).recipes
    if observation not in recipes:
        raise ValueError(
            f"{suite} has no recipe for {observation} observations, only for {', '.join(recipes)}"
        )
    return RECIPES[cast(RecipeName, recipes[observation])]


def choose_tasks(suite: str, tasks: Sequence[str]) -> tuple[str, ...]:
    """Return the tasks, or all of the suite if there are none.

    ValueError for an unknown or repeated one.
    """
    known = suite_named(suite)
    check_unique("task", tasks)
    for task in tasks:
        known.task(task)  # or ValueError
    return tuple(tasks) or known.tasks
