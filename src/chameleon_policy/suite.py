"""Benchmark suites: the protocol that recording, evaluation and experiments rely on.

A suite is registered by one line in `SUITES`. It needs neither torch nor, until it is loaded, a
simulator.

An observation is a dictionary: `proprioception` (P,) float32, and `images` (view -> (H, W, 3)
uint8) or `objects` (N, D) float32.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from chameleon_policy.data.schema import Schema
from chameleon_policy.rates import Rate

SUITES = {"camo": "chameleon_policy.camo.benchmark:CAMO"}
"""Every suite: its name, and module:object, which is imported when it is needed."""
DEFAULT_SUITE = "camo"
PAPER_TASKS = ("clean-plate", "shell-game", "seasonings")
"""Tasks of Camo that the paper has too; those that camo-small was trained on."""
"""The suite of a task whose name stands alone; any other task is named suite/task."""

Answer = int | tuple[int, ...]
"""The fact that an episode asks the policy to remember (z)."""
Mode = Literal["rgb", "state"]
"""Observations: camera images, or object slots."""
ExpertKind = Literal["oracle", "guess"]
"""An expert that knows the answer, or one that guesses it."""


class EpisodeScore(Protocol):
    """Score of one episode; a dataclass, whose fields are written into the results."""

    @property
    def success(self) -> bool:
        """Whether the task was solved."""

    @property
    def reason(self) -> str:
        """Why the task was not solved, in a few words; `success` if it was."""


class ScoreSummary(Protocol):
    """Scores of many episodes of one task."""

    @property
    def rates(self) -> Mapping[str, Rate]:
        """Rates by name, in the order of a table; `sr`, the success rate, is always there."""

    @property
    def sr(self) -> Rate:
        """Success rate."""

    @property
    def chance(self) -> float | None:
        """DSR of a guess; None for a task without a decision to remember."""

    @property
    def reasons(self) -> Mapping[str, int]:
        """How often each reason occurred."""

    def as_dict(self) -> dict[str, Any]:
        """Return the summary in JSON's types."""


@dataclass(frozen=True)
class EpisodeResult:
    """A finished episode."""

    seed: int
    z: Any
    """The `Answer`; None in a task without a decision to remember."""
    score: Any
    """An `EpisodeScore`."""
    difficulty: dict[str, int]
    length: int
    """Control steps."""
    choices: tuple[int | None, ...] = ()
    """The candidate chosen after each decision, also where the manipulation does not count; None
    where none was chosen.
    """
    chance: float | None = None
    """Probability of guessing z; None in a task without a decision to remember."""


class Environment(Protocol):
    """Gymnasium environment that can report the result of an episode.

    `info["decision"]` is true at a control step where a decision is due; it may be missing.
    """

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin the episode of a seed; the option `z` sets its answer."""

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Take a control step."""

    def result(self) -> EpisodeResult:
        """Return the result of the episode so far."""

    def close(self) -> None:
        """Free the environment."""


class EnvironmentSettings(Protocol):
    """Settings from which every process can make the same environment; picklable."""

    @property
    def suite(self) -> str:
        """Name of the suite."""

    @property
    def task(self) -> str:
        """Name of the task."""

    @property
    def title(self) -> str:
        """The task and any peculiarity of the observations, for a heading."""

    def make_env(self) -> Any:
        """Return a new `Environment`."""

    def save_video(self, seed: int, actions: np.ndarray, path: Path, size: int) -> EpisodeScore:
        """Play an episode again, save it as a video with views of this size, return its score."""

    def as_dict(self) -> dict[str, Any]:
        """Return the settings in JSON's types."""


@dataclass(frozen=True)
class Demonstration:
    """An episode of an expert."""

    observations: list[dict[str, Any]]
    actions: npt.NDArray[np.float32]
    """Labels (T, A); the executed actions may differ by noise."""
    score: Any
    """An `EpisodeScore`."""
    annotation: dict[str, Any]
    """Facts of the episode for the dataset's table: its seed, and whatever the suite knows."""


class RecordingSettings(Protocol):
    """Settings of a recording; equal ones give equal datasets, for any number of processes."""

    @property
    def suite(self) -> str:
        """Name of the suite."""

    @property
    def instruction(self) -> str:
        """The task in words."""

    @property
    def episodes(self) -> int:
        """Number of demonstrations."""

    @property
    def seed(self) -> int:
        """Number of the recording; different numbers share no episode."""

    def make_env(self) -> Any:
        """Return a new `Environment`."""

    def demonstrate(self, env: Any, episode: int, seed: int) -> Demonstration:
        """Let the expert play the episode with this index from this seed."""

    def schema(self) -> Schema:
        """Return the features of the dataset."""

    def as_dict(self) -> dict[str, Any]:
        """Return the settings in JSON's types."""


class SuiteTask(Protocol):
    """Task of a suite."""

    @property
    def name(self) -> str:
        """Name on the command line."""

    @property
    def instruction(self) -> str:
        """The task in words."""

    def summarise(self, episodes: Sequence[EpisodeResult]) -> ScoreSummary:
        """Summarise many episodes."""


@dataclass(frozen=True, kw_only=True)
class Spaces:
    """Sizes of a policy's observations and actions."""

    proprioception: int
    action: int
    views: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """View -> height and width."""
    objects: tuple[int, int] | None = None
    """Number of object slots, and numbers in each."""


class Suite(Protocol):
    """Benchmark suite."""

    @property
    def name(self) -> str:
        """Name on the command line, in file names and in `SUITES`."""

    @property
    def tasks(self) -> tuple[str, ...]:
        """Names of the tasks, in the order of a table."""

    @property
    def recipes(self) -> Mapping[Mode, str]:
        """The observations that can be recorded, each with the recipe for training on them."""

    def task(self, name: str) -> SuiteTask:
        """Return a task, or raise a ValueError that lists the names."""

    def settings(self, task: str, spaces: Spaces, **options: Any) -> EnvironmentSettings:
        """Return an environment for a policy with these spaces; ValueError if it fits none."""

    def expert_settings(self, task: str, kind: ExpertKind, **options: Any) -> EnvironmentSettings:
        """Return an environment that shows an expert's next action as its proprioception."""

    def recorded_settings(self, recorded: Mapping[str, Any], spaces: Spaces) -> EnvironmentSettings:
        """Return the environment of a recording, for a policy with these spaces.

        `recorded` is what `RecordingSettings.as_dict` wrote.
        """

    def recording(self, task: str, **options: Any) -> RecordingSettings:
        """Return the settings of a recording, or raise a ValueError."""


@dataclass(frozen=True)
class SuccessScore:
    """Score of an episode in a task without a decision to remember."""

    success: bool
    reason: str
    """As in `EpisodeScore`."""


@dataclass(frozen=True)
class SuccessSummary:
    """Success rate over many episodes."""

    sr: Rate
    reasons: dict[str, int]
    chance: None = None

    @classmethod
    def of(cls, scores: Sequence[EpisodeScore]) -> SuccessSummary:
        """Summarise scores; the most frequent reason comes first."""
        rate = Rate.of(sum(score.success for score in scores), len(scores))
        return cls(rate, dict(Counter(score.reason for score in scores).most_common()))

    @property
    def rates(self) -> dict[str, Rate]:
        """The success rate, under its name."""
        return {"sr": self.sr}

    def as_dict(self) -> dict[str, Any]:
        """Return the summary in JSON's types."""
        return {"sr": self.sr.as_dict(), "reasons": self.reasons}


def suite_named(name: str) -> Suite:
    """Return a suite, or raise a ValueError that lists the names."""
    if name not in SUITES:
        raise ValueError(f"there is no suite {name!r}; the suites are {', '.join(SUITES)}")
    module, _, attribute = SUITES[name].partition(":")
    suite: Suite = getattr(import_module(module), attribute)
    return suite


def find_task(name: str) -> tuple[Suite, str]:
    """Return the suite and the task of a name such as shell-game or suite/task."""
    before, slash, task = name.partition("/")
    suite = suite_named(before if slash else DEFAULT_SUITE)
    return suite, suite.task(task if slash else name).name


def full_name(suite: str, task: str) -> str:
    """Return the name by which `find_task` finds a task."""
    return task if suite == DEFAULT_SUITE else f"{suite}/{task}"
