"""The tasks, by name."""

from __future__ import annotations

from chameleon_policy.camo.tasks.clean_plate import CleanPlate
from chameleon_policy.camo.tasks.seasonings import Seasonings
from chameleon_policy.camo.tasks.shell_game import ShellGame
from chameleon_policy.camo.tasks.task import Answer, Span, Task

TASKS: dict[str, type[Task]] = {task.name: task for task in (CleanPlate, ShellGame, Seasonings)}


def task_named(name: str) -> type[Task]:
    """The class of a task, or a ValueError that lists the names."""
    if name not in TASKS:
        raise ValueError(f"there is no task {name!r}; the tasks are {', '.join(TASKS)}")
    return TASKS[name]


__all__ = ["TASKS", "Answer", "Span", "Task", "task_named"]
