"""Small pieces that several Camo tests use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from chameleon_policy.camo import TASKS, CamoEnv
from chameleon_policy.camo.controller import pose_to_action
from chameleon_policy.camo.robot import DECISION_POSE

TASK_NAMES = tuple(TASKS)
WAIT = pose_to_action(DECISION_POSE, 1.0)
"""The action that holds the decision pose."""


@dataclass(frozen=True)
class Case:
    """A task with some of its dials set."""

    name: str
    dials: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return " ".join([self.name, *(f"{dial}={value}" for dial, value in self.dials.items())])

    def env(self, **options: Any) -> CamoEnv:
        """Return a new environment."""
        return CamoEnv(self.name, **options, **self.dials)


CASES = (
    *map(Case, TASK_NAMES),
    Case("shell-game", {"cups": (4, 5)}),
    Case("seasonings", {"length": (1, 2)}),
    Case("pantry", {"cups": (3, 4), "questions": (1, 2), "shown": (1, 8)}),
)
"""Every task, and those with dials that decide which answers there are."""


def wait_until_decision(env: CamoEnv) -> dict[str, Any]:
    """Hold still until t_d; return the observation there."""
    observation: dict[str, Any] = {}
    while not env.decisions:
        observation, *_ = env.step(WAIT)
    return observation


def play(
    env: CamoEnv, actions: Iterator[np.ndarray]
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Step until the episode is over; return all observations and the last info."""
    observations, over, info = [], False, {}
    while not over:
        observation, _, terminated, truncated, info = env.step(next(actions))
        observations.append(observation)
        over = terminated or truncated
    return observations, info
