"""Variants of the environment: with the answer shown, for experts as policies, or for one choice.

They test policies, memories and the evaluation itself; they are not part of the benchmark.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from chameleon_policy.camo.dataset_variants import CHOICES, answer_due
from chameleon_policy.camo.env import CamoEnv
from chameleon_policy.camo.experts import make_expert
from chameleon_policy.suite import Answer


class AnswerShownEnv(CamoEnv):
    """Environment whose proprioception ends with the answer of the next decision.

    Failures of a policy in it are not failures of its memory.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        if len(self.task.candidates) > CHOICES:
            raise ValueError(
                f"a policy can be told the answer among {CHOICES} candidates, and {self.task.name} "
                f"has {len(self.task.candidates)} with these dials: leave them at their defaults"
            )

    def _make_observation_space(self) -> gym.spaces.Dict:
        spaces = super()._make_observation_space().spaces
        pose = spaces["proprioception"]
        assert isinstance(pose, gym.spaces.Box)
        low, high = (
            np.concatenate([end, np.full(CHOICES, rest, np.float32)])
            for end, rest in ((pose.low, 0), (pose.high, 1))
        )
        return gym.spaces.Dict({**spaces, "proprioception": gym.spaces.Box(low, high)})

    def _observation(self) -> dict[str, Any]:
        observation = super()._observation()
        answers = self.z if isinstance(self.z, tuple) else (self.z,)
        due = answer_due(answers, len(self.decisions))
        return {**observation, "proprioception": np.append(observation["proprioception"], due)}


class OracleEnv(CamoEnv):
    """Environment that shows its expert's next action in place of proprioception."""

    def choice(self) -> Answer | None:
        """Return the answer that the expert acts on; None for the right one."""
        return None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin an episode with a new, undisturbed expert."""
        observation, info = super().reset(seed=seed, options=options)
        self._expert = make_expert(self, noise=0.0, wrong_choice=self.choice())
        return self._with_action(observation), info

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Take a control step."""
        observation, reward, terminated, truncated, info = super().step(action)
        return self._with_action(observation), reward, terminated, truncated, info

    def _with_action(self, observation: dict[str, Any]) -> dict[str, Any]:
        return {**observation, "proprioception": np.asarray(self._expert.act().action, np.float32)}


class GuessingEnv(OracleEnv):
    """Environment whose expert manipulates perfectly and chooses at random."""

    def choice(self) -> Answer | None:
        """Return a random answer."""
        return self.task.possible[
            int(np.random.default_rng([self.seed, 1]).integers(len(self.task.possible)))
        ]


class OneChoiceEnv(CamoEnv):
    """Environment that ends with the choice after its decision `until_choice`.

    Before that decision it repeats its first observation: known actions are replayed there, and
    drawing would take most of the time.
    """

    def __init__(self, *arguments: Any, until_choice: int, **options: Any) -> None:
        super().__init__(*arguments, **options)
        if not 0 <= until_choice < self.task.decisions:
            raise ValueError(
                f"{self.task.name} has {self.task.decisions} decisions, "
                f"there is no decision {until_choice}"
            )
        self._until_choice = until_choice
        self._first: dict[str, Any] | None = None

    def reset(self, **options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin an episode."""
        self._first = None
        return super().reset(**options)

    def step(
        self, action: npt.ArrayLike
    ) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Take a control step; the episode is over when the choice is made."""
        observation, reward, _, truncated, info = super().step(action)
        choices = self.task.choices(self.events)
        self._over = self._over or (
            len(choices) > self._until_choice and choices[self._until_choice] is not None
        )
        return observation, reward, self._over and not truncated, truncated, info

    def _observation(self) -> dict[str, Any]:
        if len(self.decisions) > self._until_choice:
            return super()._observation()
        if self._first is None:
            self._first = super()._observation()
        return self._first
