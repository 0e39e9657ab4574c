"""Camo in simulation: four manipulation tasks whose decision scenes do not show the answer.

import gymnasium as gym
import chameleon_policy.camo

env = gym.make("Camo/ShellGame-v0", image_size=128, swaps=(1, 3))
"""

from __future__ import annotations

import gymnasium as gym

from chameleon_policy.camo.env import CamoEnv
from chameleon_policy.camo.scoring import Score, Summary, score, summarise
from chameleon_policy.camo.tasks import TASKS, Task, task_named

for _task in TASKS.values():
    # Without wrappers: the environment checks its own actions and the order of calls, with better
    # messages.
    gym.register(
        id=_task.gym_id,
        entry_point="chameleon_policy.camo.env:CamoEnv",
        kwargs={"task": _task.name},
        order_enforce=False,
        disable_env_checker=True,
    )

__all__ = ["TASKS", "CamoEnv", "Score", "Summary", "Task", "score", "summarise", "task_named"]
