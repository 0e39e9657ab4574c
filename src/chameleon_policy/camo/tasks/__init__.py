"""The tasks, by name."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from chameleon_policy.camo.tasks.clean_plate import CleanPlate
from chameleon_policy.camo.tasks.pantry import Pantry
from chameleon_policy.camo.tasks.seasonings import Seasonings
from chameleon_policy.camo.tasks.shell_game import ShellGame
from chameleon_policy.camo.tasks.task import Span, Task
from chameleon_policy.suite import Answer

TASKS: dict[str, type[Task]] = {
    task.name: task for task in (CleanPlate, ShellGame, Seasonings, Pantry)
}


def task_named(name: str) -> type[Task]:
    """Return the class of a task, or raise a ValueError that lists the names."""
    if name not in TASKS:
        close = difflib.get_close_matches(name, TASKS, n=1)
        hint = f"did you mean {close[0]}? The" if close else "the"
        raise ValueError(f"there is no task {name!r}; {hint} tasks are {', '.join(TASKS)}")
    return TASKS[name]


def make_task(name: str, difficulty: Mapping[str, Any]) -> Task:
    """Return a task with its dials set, or raise a ValueError that lists the dials it has."""
    kind = task_named(name)
    unknown = sorted(difficulty.keys() - kind.dials.keys())
    if unknown:
        own = f"its own are: {', '.join(kind.dials)}" if kind.dials else "it has none of its own"
        raise ValueError(
            f"{name} has no parameter {', '.join(unknown)}; {own}. Every task has observation, "
            "image_size, retention_steps, nuisance, render_mode"
        )
    return kind(**difficulty)


__all__ = ["TASKS", "Answer", "Span", "Task", "make_task", "task_named"]
