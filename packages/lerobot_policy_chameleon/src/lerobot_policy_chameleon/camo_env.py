"""Camo with the names of LeRobot's observations and infos, and the task as a text."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from chameleon_policy.camo import TASKS, CamoEnv, task_named
from chameleon_policy.camo.tasks import make_task
from chameleon_policy.camo.world import CONTROL_HZ
from chameleon_policy.seeds import evaluation_seed

LONGEST_EVIDENCE = 600
"""Upper bound in control steps. Episodes end by themselves, but LeRobot needs a number."""


def task_of(name: str | None) -> str:
    """Return the name of a task, given that or its Gymnasium id (ShellGame, Camo/ShellGame-v0)."""
    for task in TASKS.values():
        if name in (task.gym_id, task.gym_id.removeprefix("Camo/").removesuffix("-v0")):
            return task.name
    return task_named(str(name)).name


def slots_of(task: str, dials: Mapping[str, Any]) -> int:
    """Return the number of values in all object slots of a task with these dials."""
    known = make_task(task, dials)
    return known.slots * len(known.slot_names)


class LeRobotCamoEnv(gym.Env[dict[str, Any], npt.NDArray[np.float32]]):
    """A Camo environment for lerobot-eval and for the evaluations of lerobot-train.

    LeRobot's seeds are small numbers, which Camo uses for demonstrations. Seed s therefore stands
    for the evaluation episode with index s.
    """

    # A fraction, because video writers of newer versions of LeRobot refuse 7.5.
    metadata = {  # noqa: RUF012 (Gymnasium's convention)
        "render_modes": ["rgb_array"],
        "render_fps": Fraction(CONTROL_HZ),
    }

    def __init__(self, task: str, render_mode: str | None = "rgb_array", **options: Any) -> None:
        self._camo = CamoEnv(task, render_mode=render_mode, **options)
        self.render_mode = render_mode
        self.task: str = self._camo.task.name
        self.task_description: str = self._camo.task.instruction
        longest_wait = options.get("retention_steps", (3, 10))[1]
        self._max_episode_steps = LONGEST_EVIDENCE + longest_wait + self._camo.task.execution_steps
        self.action_space = self._camo.action_space
        self.observation_space = self._space()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin the evaluation episode with index `seed`, or one of the training range."""
        observation, info = self._camo.reset(seed=None if seed is None else evaluation_seed(seed))
        return self._rename(observation), self._summarise(info)

    def step(
        self, action: npt.ArrayLike
    ) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Take one control step."""
        observation, reward, terminated, truncated, info = self._camo.step(action)
        return self._rename(observation), reward, terminated, truncated, self._summarise(info)

    def render(self) -> npt.NDArray[np.uint8]:
        """Return an image of both views side by side."""
        return self._camo.render()

    def close(self) -> None:
        """Free the renderers."""
        self._camo.close()

    def _rename(self, observation: dict[str, Any]) -> dict[str, Any]:
        renamed: dict[str, Any] = {"agent_pos": observation["proprioception"]}
        if "images" in observation:
            renamed["pixels"] = observation["images"]
        else:
            renamed["environment_state"] = observation["objects"].ravel()
        return renamed

    def _space(self) -> gym.spaces.Dict:
        original = self._camo.observation_space
        spaces: dict[str, gym.Space[Any]] = {"agent_pos": original["proprioception"]}
        if "images" in original.spaces:
            spaces["pixels"] = original["images"]
        else:
            slots = original["objects"]
            assert isinstance(slots, gym.spaces.Box)
            spaces["environment_state"] = gym.spaces.Box(slots.low.ravel(), slots.high.ravel())
        return gym.spaces.Dict(spaces)

    @staticmethod
    def _summarise(info: dict[str, Any]) -> dict[str, Any]:
        """Return the entries of `info` that vectorised environments can stack."""
        score = info["score"]
        return {
            "is_success": info["is_success"],
            "manipulation": bool(score and score.manipulation),
            "decision": bool(score and score.decision),
        }
