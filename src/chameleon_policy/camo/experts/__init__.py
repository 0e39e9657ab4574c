"""Scripted experts, one for each task."""

from __future__ import annotations

from chameleon_policy.camo.env import CamoEnv
from chameleon_policy.camo.experts.clean_plate import CleanPlateExpert
from chameleon_policy.camo.experts.expert import Demonstrated, Expert
from chameleon_policy.camo.experts.pantry import PantryExpert
from chameleon_policy.camo.experts.seasonings import SeasoningsExpert
from chameleon_policy.camo.experts.shell_game import ShellGameExpert
from chameleon_policy.camo.tasks import Answer

EXPERTS: dict[str, type[Expert]] = {
    "clean-plate": CleanPlateExpert,
    "shell-game": ShellGameExpert,
    "seasonings": SeasoningsExpert,
    "pantry": PantryExpert,
}


def make_expert(env: CamoEnv, *, noise: float = 1.0, wrong_choice: Answer | None = None) -> Expert:
    """Return the expert for the task of an environment that has been reset."""
    return EXPERTS[env.task.name](env, noise=noise, wrong_choice=wrong_choice)


__all__ = ["EXPERTS", "Demonstrated", "Expert", "make_expert"]
