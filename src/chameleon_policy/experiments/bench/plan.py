"""What a bench trains and plays: the settings that all methods share, and the jobs that follow from
them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_args

import tyro

from chameleon_policy.baselines import METHODS, method_named
from chameleon_policy.camo import TASKS, task_named
from chameleon_policy.camo.recording import Recording
from chameleon_policy.device import Device
from chameleon_policy.experiments.reproduce import HELD_OUT
from chameleon_policy.policy.presets import PresetName, preset
from chameleon_policy.suite import Mode

HELD_OUT_RECORDING = 1000
"""Added to a training's seed, the number of the recording that is held out."""
LOOKS = 1
"""At the demonstrations that are held out: when the training is over."""
PARALLEL = 36
"""Episodes at the same time; another number would be another run."""
CHAMELEON = (sys.executable, "-m", "chameleon_policy.cli")


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Methods x tasks x seeds, and how each policy is trained and scored."""

    methods: Annotated[
        tuple[str, ...], tyro.conf.arg(name="method"), tyro.conf.UseAppendAction
    ] = ()
    """chameleon, no-memory, act ... (docs/baselines.md); give it again for another (default:
    all).
    """
    tasks: Annotated[tuple[str, ...], tyro.conf.arg(name="task"), tyro.conf.UseAppendAction] = ()
    """clean-plate, shell-game or seasonings; give it again for another (default: all three). From
    pictures, one policy learns all of them; from object slots, each has a policy of its own."""
    seeds: Annotated[tuple[int, ...], tyro.conf.arg(name="seed"), tyro.conf.UseAppendAction] = ()
    """Of a training and its demonstrations; give it again for another training (default: 0).
    Evaluation episodes are always the same."""
    preset: PresetName = "small"
    """Size of the policies."""
    steps: int = 4000
    """Optimizer steps of each training."""
    demonstrations: int = 120
    """Expert episodes of each task to learn from; the paper has 120."""
    image_size: int = 128
    """Height and width of the pictures."""
    observation: Mode = "rgb"
    """Pictures of both cameras, or object slots."""
    episodes: int = 100
    """Held-out episodes of each task."""
    tell_answer: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Give every policy the answer, to see what it fails at besides remembering."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "methods", self.methods or tuple(METHODS))
        object.__setattr__(self, "tasks", self.tasks or tuple(TASKS))
        object.__setattr__(self, "seeds", self.seeds or (0,))
        for name, values in (("method", self.methods), ("task", self.tasks), ("seed", self.seeds)):
            if len(set(values)) < len(values):
                raise ValueError(
                    f"--{name} must name each {name} once, got {' '.join(map(str, values))}"
                )
        for method in self.methods:
            method_named(method).check_requirements()  # or ValueError, or ImportError
        for task in self.tasks:
            task_named(task)  # or ValueError
        preset(self.preset)  # or ValueError
        if self.observation not in get_args(Mode):
            raise ValueError(
                f"--observation must be one of {', '.join(get_args(Mode))}, got {self.observation}"
            )
        for name in ("steps", "demonstrations", "episodes"):
            if getattr(self, name) < 1:
                raise ValueError(f"--{name} must be at least 1, got {getattr(self, name)}")
        for seed in self.seeds:
            if not 0 <= seed < HELD_OUT_RECORDING:
                raise ValueError(
                    f"--seed must be between 0 and {HELD_OUT_RECORDING - 1}, got {seed}"
                )

    def jobs(self) -> list[Job]:
        """All trainings, seed by seed, so that a bench that is cut short has compared everything
        once.
        """
        # In the benchmark's order, so that the order in which tasks are typed makes no other
        # training.
        tasks = tuple(task for task in TASKS if task in self.tasks)
        together = [tasks] if self.observation == "rgb" else [(task,) for task in tasks]
        return [
            Job(bench=self, method=method, seed=seed, tasks=learned)
            for seed in self.seeds
            for method in self.methods
            for learned in together
        ]

    def recordings(self, out: Path, jobs: Sequence[Job]) -> dict[Path, Recording]:
        """The demonstrations that these jobs learn from and are watched on; every method gets the
        same.
        """
        settings: dict[str, Any] = {"observation": self.observation}
        if self.observation == "rgb":
            settings["image_size"] = self.image_size
        found: dict[Path, Recording] = {}
        for job in jobs:
            for task in job.tasks:
                held_out = Recording(
                    task=task, episodes=HELD_OUT, seed=job.seed + HELD_OUT_RECORDING, **settings
                )
                found[job.data(out, task)] = Recording(
                    task=task, episodes=self.demonstrations, seed=job.seed, **settings
                )
                found[job.held_out(out, task)] = held_out
        return found


@dataclass(frozen=True, kw_only=True)
class Job:
    """One training and the evaluations of its policy, one for each task it has learned."""

    bench: Bench
    method: str
    seed: int
    tasks: tuple[str, ...]

    @property
    def name(self) -> str:
        """Tells the job from all others of its preset; the name of its folder."""
        parts = [self.method, f"{self.bench.steps}steps", f"seed{self.seed}"]
        if self.bench.tell_answer:
            parts.append("told")
        if self.bench.observation == "state":
            parts.append("state")
        if len(self.tasks) < len(TASKS):
            parts += self.tasks
        return "-".join(parts)

    def identity(self, task: str) -> dict[str, Any]:
        """What tells a row of the results from all others."""
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
        """Demonstrations to learn from."""
        return out / "data" / self.bench.observation / f"seed{self.seed}" / task

    def held_out(self, out: Path, task: str) -> Path:
        """Demonstrations that are only looked at."""
        return out / "held-out" / self.bench.observation / f"seed{self.seed}" / task

    def run(self, out: Path) -> Path:
        """Folder of the training."""
        return out / self.bench.preset / self.name

    def log(self, out: Path, task: str | None = None) -> Path:
        """What the training says, or the evaluation on a task; beside the run, whose folder takes
        nothing else.
        """
        return _beside(self.run(out), task, ".log")

    def scores(self, out: Path, task: str) -> Path:
        """Every episode of an evaluation."""
        return _beside(self.run(out), task, ".json")

    def train_command(self, out: Path, device: Device, workers: int) -> list[str]:
        """Trains the policy, or goes on."""
        bench = self.bench
        recipe = "camo" if bench.observation == "rgb" else "camo-state"
        words = [
            "train",
            *(self.data(out, task) for task in self.tasks),
            "--out",
            self.run(out),
            "--recipe",
            recipe,
        ]
        words += [
            "--method",
            self.method,
            "--preset",
            bench.preset,
            "--steps",
            bench.steps,
            "--seed",
            self.seed,
        ]
        words += [
            "--held-out",
            *(self.held_out(out, task) for task in self.tasks),
            "--watch-times",
            LOOKS,
        ]
        words += ["--watch-episodes", 0, "--device", device, "--workers", workers]
        if bench.tell_answer:
            words += ["--tell-answer", "--no-mirror"]  # what is told is not told in a mirror
        return [*CHAMELEON, *map(str, words)]

    def eval_command(self, out: Path, task: str, device: Device, workers: int) -> list[str]:
        """Plays the reported episodes of a task."""
        words = ["eval", self.run(out), "--task", task, "--episodes", self.bench.episodes]
        words += ["--steps", method_named(self.method).few_steps, "--json", self.scores(out, task)]
        words += ["--workers", workers, "--parallel", PARALLEL, "--device", device]
        return [*CHAMELEON, *map(str, words)]


def _beside(run: Path, task: str | None, ending: str) -> Path:
    return run.with_name("-on-".join((run.name, task) if task else (run.name,)) + ending)
