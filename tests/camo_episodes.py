"""Small pieces that several Camo tests use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from chameleon_policy.camo import TASKS, CamoEnv
from chameleon_policy.camo.controller import pose_to_action
from chameleon_policy.camo.robot import DECISION_POSE

TASK_NAMES = tuple(TASKS)
WAIT = pose_to_action(DECISION_POSE, 1.0)
"""The action that holds the decision pose."""


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
