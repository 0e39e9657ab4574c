"""A suite with one task, as small as the protocol allows: remember which object was lit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from chameleon_policy.data import Schema
from chameleon_policy.data.video import encode_video
from chameleon_policy.suite import (
    Demonstration,
    EpisodeResult,
    ExpertKind,
    Mode,
    Spaces,
    SuccessScore,
    SuccessSummary,
)

STEPS = 2


class LitEnv(gym.Env):
    """One of two objects is lit at first; the last action must be its position, -1 or 1."""

    action_space = gym.spaces.Box(-1, 1, (1,))

    def __init__(self, expert: bool = False) -> None:
        self.expert = expert

    def reset(self, *, seed=None, options=None):
        """Begin an episode; the parity of the seed decides which object is lit."""
        self.seed, self.steps, self.action = seed, 0, 0.0
        return self.observation(), {}

    def step(self, action):
        """Take a step; the second one ends the episode."""
        self.steps, self.action = self.steps + 1, float(action[0])
        return self.observation(), 0.0, self.steps == STEPS, False, {}

    @property
    def answer(self) -> float:
        """Position of the object that was lit."""
        return 1.0 if self.seed % 2 else -1.0

    def observation(self) -> dict[str, np.ndarray]:
        """Return proprioception and objects."""
        shown = self.answer if self.expert else self.action
        lit = [self.steps == 0 and side == self.answer for side in (-1, 1)]
        return {
            "proprioception": np.array([shown], np.float32),
            "objects": np.array([[-1, lit[0]], [1, lit[1]]], np.float32),
        }

    def score(self) -> SuccessScore:
        """Return whether the last action was right."""
        right = self.action * self.answer > 0
        return SuccessScore(right, "success" if right else "wrong side")

    def result(self) -> EpisodeResult:
        """Return the result of the episode."""
        return EpisodeResult(self.seed, None, self.score(), {}, self.steps)


@dataclass(frozen=True)
class LitSettings:
    """Settings of the environment."""

    task: str = "lit"
    suite: str = "toy"
    expert: bool = False

    @property
    def title(self) -> str:
        """The task."""
        return self.task

    def make_env(self) -> LitEnv:
        """Return a new environment."""
        return LitEnv(self.expert)

    def save_video(self, seed: int, actions: np.ndarray, path: Path, size: int) -> SuccessScore:
        """Save a video of grey frames."""
        env = self.make_env()
        env.reset(seed=seed)
        for action in actions:
            env.step(action)
        encode_video(path, np.full((len(actions), size, size, 3), 128, np.uint8), Fraction(2))
        return env.score()

    def as_dict(self) -> dict[str, Any]:
        """Return the settings in JSON's types."""
        return asdict(self)


@dataclass(frozen=True)
class LitRecording:
    """Settings of a recording."""

    task: str = "lit"
    episodes: int = 4
    seed: int = 0
    observation: Mode = "state"
    suite: str = "toy"
    instruction: str = "Go to the object that was lit."

    def make_env(self) -> LitEnv:
        """Return a new environment."""
        return LitEnv()

    def demonstrate(self, env: LitEnv, episode: int, seed: int) -> Demonstration:
        """Let the expert play."""
        observations = [env.reset(seed=seed)[0]]
        actions = np.full((STEPS, 1), env.answer, np.float32)
        observations += [env.step(action)[0] for action in actions]
        return Demonstration(observations[:-1], actions, env.score(), {"seed": seed})

    def schema(self) -> Schema:
        """Return the features of the dataset."""
        slots = tuple(f"slot{slot}.{name}" for slot in (0, 1) for name in ("x", "lit"))
        vectors = {"observation.state": ("x",), "action": ("x",)}
        vectors["observation.environment_state"] = slots
        return Schema(fps=2, robot_type="toy", views={}, vectors=vectors)

    def as_dict(self) -> dict[str, Any]:
        """Return the settings in JSON's types."""
        return asdict(self)


class LitTask:
    """The only task."""

    name = "lit"
    instruction = LitRecording.instruction

    def summarise(self, episodes: Sequence[EpisodeResult]) -> SuccessSummary:
        """Return the success rate."""
        return SuccessSummary.of([each.score for each in episodes])


class ToySuite:
    """The suite."""

    name = "toy"
    tasks = ("lit",)
    recipes: Mapping[Mode, str] = {"state": "camo-state"}

    def task(self, name: str) -> LitTask:
        """Return the task."""
        if name not in self.tasks:
            raise ValueError(f"there is no task {name!r}; the tasks are lit")
        return LitTask()

    def settings(self, task: str, spaces: Spaces) -> LitSettings:
        """Return the environment for a policy with one action and two object slots."""
        if spaces != Spaces(proprioception=1, action=1, objects=(2, 2)):
            raise ValueError("this policy was trained on another task")
        return LitSettings()

    def expert_settings(self, task: str, kind: ExpertKind) -> LitSettings:
        """Return the environment that shows the expert's action."""
        return LitSettings(expert=True)

    def recorded_settings(self, recorded: Mapping[str, Any], spaces: Spaces) -> LitSettings:
        """Return the environment of a recording."""
        return replace(self.settings(recorded["task"], spaces), task=recorded["task"])

    def recording(self, task: str, **options: Any) -> LitRecording:
        """Return what to record."""
        return LitRecording(task=task, **options)


TOY = ToySuite()
