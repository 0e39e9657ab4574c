"""The jobs of a bench: their common settings, and the commands of each."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from chameleon_policy.baselines import METHODS, method_named
from chameleon_policy.console import check_counts, check_unique
from chameleon_policy.device import Device
from chameleon_policy.experiments.pipeline import (
    HELD_OUT,
    SuiteName,
    choose_tasks,
    recipe_for,
)
from chameleon_policy.policy.presets import PresetName, preset
from chameleon_policy.suite import (
    DEFAULT_SUITE,
    PAPER_TASKS,
    Mode,
    RecordingSettings,
    full_name,
    suite_named,
)

HELD_OUT_RECORDING = 1000
"""Added to the seed of a training run; the sum is the seed of its held-out recording."""
HELD_OUT_EVALUATIONS = 1
"""Evaluations on held-out demonstrations: one at the end of training."""
PARALLEL = 36
"""Episodes at the same time; results depend on it."""
CHAMELEON = (sys.executable, "-m", "chameleon_policy.cli")


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Methods x tasks x seeds, and how each policy is trained and scored."""

    suite: tyro.conf.Positional[SuiteName]
    """Suite of tasks."""
    methods: Annotated[
        tuple[str, ...], tyro.conf.arg(name="method"), tyro.conf.UseAppendAction
    ] = ()
    """chameleon, no-memory, act ... (docs/baselines.md); give it again for another.
    By default all of them."""
    tasks: Annotated[
        tuple[str, ...], tyro.conf.arg(name="task", metavar="TASK"), tyro.conf.UseAppendAction
    ] = ()
    """clean-plate, shell-game, seasonings or pantry; give it again for another (default: all
    four, or the first three with --tell-answer).
    From images, one policy learns all of them; from object slots, each has a policy of its own."""
    seeds: Annotated[tuple[int, ...], tyro.conf.arg(name="seed"), tyro.conf.UseAppendAction] = ()
    """Seed of a training run and its demonstrations; give it again for another run (default: 0).
    Evaluation episodes are always the same."""
    preset: PresetName = "small"
    """Size of the policies."""
    steps: int = 4000
    """Optimizer steps of each training run."""
    demonstrations: int = 120
    """Expert episodes of each task to learn from; the paper has 120."""
    image_size: int = 128
    """Height and width of the images."""
    observation: Mode = "rgb"
    """Images of both cameras, or object slots."""
    episodes: int = 100
    """Held-out episodes of each task."""
    tell_answer: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Give every policy the answer, to see where it fails for other reasons than its memory."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "methods", self.methods or tuple(METHODS))
        object.__setattr__(self, "seeds", self.seeds or (0,))
        check_unique("method", self.methods)
        check_unique("seed", self.seeds)
        # An answer can be told among three candidates, and pantry has six.
        told = PAPER_TASKS if self.tell_answer and self.suite == DEFAULT_SUITE else ()
        object.__setattr__(self, "tasks", choose_tasks(self.suite, self.tasks or told))
        for method in self.methods:
            method_named(method).check_requirements()  # or ValueError, or ImportError
        preset(self.preset)  # or ValueError
        recipe_for(self.suite, self.observation)  # or ValueError
        check_counts(steps=self.steps, demonstrations=self.demonstrations, episodes=self.episodes)
        for seed in self.seeds:
            if not 0 <= seed < HELD_OUT_RECORDING:
                raise ValueError(
                    f"--seed must be between 0 and {HELD_OUT_RECORDING - 1}, got {seed}"
                )

    def jobs(self) -> list[BenchJob]:
        """Return all jobs, seed by seed: a bench that is cut short has compared everything once."""
        # In the suite's order, so that the order of --task changes nothing.
        tasks = tuple(task for task in suite_named(self.suite).tasks if task in self.tasks)
        together = [tasks] if self.observation == "rgb" else [(task,) for task in tasks]
        return [
            BenchJob(bench=self, method=method, seed=seed, tasks=learned)
            for seed in self.seeds
            for method in self.methods
            for learned in together
        ]

    def recordings(self, out: Path, jobs: Sequence[BenchJob]) -> dict[Path, RecordingSettings]:
        """Return the demonstrations for training and held-out evaluation of these jobs, by folder.

        Every method gets the same.
        """
        suite = suite_named(self.suite)
        settings: dict[str, Any] = {"observation": self.observation}
        if self.observation == "rgb":
            settings["image_size"] = self.image_size
        found: dict[Path, RecordingSettings] = {}
        for job in jobs:
            held_out_seed = job.seed + HELD_OUT_RECORDING
            for task in job.tasks:
                found[job.data(out, task)] = suite.recording(
                    task, episodes=self.demonstrations, seed=job.seed, **settings
                )
                found[job.held_out(out, task)] = suite.recording(
                    task, episodes=HELD_OUT, seed=held_out_seed, **settings
                )
        return found


@dataclass(frozen=True, kw_only=True)
class BenchJob:
    """One training run, and the evaluations of its policy on each task it has learned."""

    bench: Bench
    method: str
    seed: int
    tasks: tuple[str, ...]

    @property
    def name(self) -> str:
        """Name of the job's folder, different from all others of its preset."""
        parts = [self.method, f"{self.bench.steps}steps", f"seed{self.seed}"]
        if self.bench.tell_answer:
            parts.append("told")
        if self.bench.observation == "state":
            parts.append("state")
        if len(self.tasks) < len(suite_named(self.bench.suite).tasks):
            parts += self.tasks
        return "-".join(parts)

    def identity(self, task: str) -> dict[str, Any]:
        """Return the settings that distinguish a row of the results from all others."""
        bench = self.bench
        return {
            "method": self.method,
            "task": task,
            "seed": self.seed,
            "preset": bench.preset,
            "observation": bench.observation,
            "told": bench.tell_answer,
            "image_size": bench.image_size if bench.observation == "rgb" else None,
            "demonstrations": bench.demonstrations,
            "steps": bench.steps,
            "trained_on": list(self.tasks),
            "episodes": bench.episodes,
        }

    def data(self, out: Path, task: str) -> Path:
        """Return the folder of the demonstrations for training."""
        return out / "data" / self.bench.observation / f"seed{self.seed}" / task

    def held_out(self, out: Path, task: str) -> Path:
        """Return the folder of the held-out demonstrations."""
        return out / "held-out" / self.bench.observation / f"seed{self.seed}" / task

    def run(self, out: Path) -> Path:
        """Return the folder of the training run."""
        return out / self.bench.preset / self.name

    def log(self, out: Path, task: str | None = None) -> Path:
        """Return the log of the training run, or of the evaluation on a task.

        It lies next to the run, whose folder takes nothing else.
        """
        return self._next_to_run(out, task, ".log")

    def scores(self, out: Path, task: str) -> Path:
        """Return the file with every episode of an evaluation."""
        return self._next_to_run(out, task, ".json")

    def _next_to_run(self, out: Path, task: str | None, ending: str) -> Path:
        run = self.run(out)
        return run.with_name("-on-".join((run.name, task) if task else (run.name,)) + ending)

    def train_command(self, out: Path, device: Device, workers: int) -> list[str]:
        """Return the command that trains the policy, or continues."""
        bench = self.bench
        recipe = suite_named(bench.suite).recipes[bench.observation]
        data = [self.data(out, task) for task in self.tasks]
        held_out = [self.held_out(out, task) for task in self.tasks]
        words: list[object] = ["train", *data, "--out", self.run(out), "--recipe", recipe]
        words += ["--method", self.method, "--preset", bench.preset]
        words += ["--steps", bench.steps, "--seed", self.seed]
        words += ["--held-out", *held_out, "--watch-times", HELD_OUT_EVALUATIONS]
        words += ["--watch-episodes", 0, "--device", device, "--workers", workers]
        if bench.tell_answer:
            words += ["--tell-answer", "--no-mirror"]  # answers are not mirrored
        return [*CHAMELEON, *map(str, words)]

    def eval_command(self, out: Path, task: str, device: Device, workers: int) -> list[str]:
        """Return the command that plays the held-out episodes of a task."""
        name = full_name(self.bench.suite, task)
        words = ["eval", self.run(out), "--task", name, "--episodes", self.bench.episodes]
        words += ["--steps", method_named(self.method).few_steps, "--json", self.scores(out, task)]
        words += ["--workers", workers, "--parallel", PARALLEL, "--device", device]
        return [*CHAMELEON, *map(str, words)]
