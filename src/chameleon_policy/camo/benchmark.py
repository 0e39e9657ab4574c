"""Camo as a suite of tasks, for recording, evaluation and experiments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from chameleon_policy.camo.recording import Recording
from chameleon_policy.camo.settings import RECORDED, CamoSettings, observation_for
from chameleon_policy.camo.tasks import TASKS, Task, task_named
from chameleon_policy.suite import ExpertKind, Mode, Spaces, Suite


class CamoSuite:
    """Camo's four tasks."""

    name = CamoSettings.suite
    tasks = tuple(TASKS)
    recipes: Mapping[Mode, str] = {"rgb": "camo", "state": "camo-state"}

    def task(self, name: str) -> Task:
        """Return a task, or raise a ValueError that lists the names."""
        return task_named(name)()

    def settings(self, task: str, spaces: Spaces, **options: Any) -> CamoSettings:
        """Return an environment for a policy with these spaces; ValueError if it fits none."""
        observation = observation_for(spaces, task, options.get("difficulty", {}))
        return CamoSettings(task=task, **observation, **options)

    def expert_settings(self, task: str, kind: ExpertKind, **options: Any) -> CamoSettings:
        """Return an environment that shows an expert's next action as its proprioception."""
        return CamoSettings(task=task, observation="state", kind=kind, **options)

    def recorded_settings(self, recorded: Mapping[str, Any], spaces: Spaces) -> CamoSettings:
        """Return the environment of a recording, for a policy with these spaces."""
        settings = CamoSettings(**{name: recorded[name] for name in RECORDED})
        return replace(settings, **observation_for(spaces, settings.task, settings.difficulty))

    def recording(self, task: str, **options: Any) -> Recording:
        """Return the settings of a recording, or raise a ValueError."""
        return Recording(task=task, **options)


CAMO: Suite = CamoSuite()
