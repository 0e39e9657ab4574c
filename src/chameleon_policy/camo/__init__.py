"""Camo in simulation: three manipulation tasks whose decision scenes look the same whatever the answer is.

import gymnasium as gym
import chameleon_policy.camo

env = gym.make("Camo/ShellGame-v0", image_size=128, swaps=(1, 3))
"""

from __future__ import annotations

from chameleon_policy.camo.opengl import choose_backend

choose_backend()  # before anything imports MuJoCo

import gymnasium as gym  # noqa: E402

from chameleon_policy.camo.env import CamoEnv  # noqa: E402
from chameleon_policy.camo.scoring import Rate, Score, Summary, score, summarise  # noqa: E402
from chameleon_policy.camo.tasks import TASKS, Task, task_named  # noqa: E402

for _task in TASKS.values():
    gym.register(
        id=_task.gym_id, entry_point="chameleon_policy.camo.env:CamoEnv", kwargs={"task": _task.name}, order_enforce=False
    )

__all__ = ["TASKS", "CamoEnv", "Rate", "Score", "Summary", "Task", "score", "summarise", "task_named"]
