"""Recipes: settings of a training under a name. Options that are given beside a recipe count more than its own.

Where a recipe leaves the paper's settings, docs/deviations.md says what was measured and what was not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

RecipeName = Literal["camo", "camo-state"]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What differs from the defaults of `TrainingConfig` and `ObjectiveConfig`."""

    horizon: int
    objective: Mapping[str, float | int]
    training: Mapping[str, float | int | str | bool]

    def options(self) -> dict[str, list[str]]:
        """The same as options of the command line, each with its values; a switch has none."""
        settings = {**self.training, "horizon": self.horizon, **self.objective}
        options: dict[str, list[str]] = {}
        for name, value in settings.items():
            words = name.replace("_", "-")
            options[f"--no-{words}" if value is False else f"--{words}"] = [] if isinstance(value, bool) else [str(value)]
        return options


RECIPES: dict[RecipeName, Recipe] = {
    "camo": Recipe(
        horizon=8,
        objective={"action_steps": 32, "flow_time_power": 2, "proprioception_noise": 0.03},
        training={
            "minutes": 20, "batch": 32, "optimizer": "muon", "learning_rate": 1e-3, "beta2": 0.99, "gradient_clip": 1,
            "rest_emphasis": 0.1, "equal_frames": True, "uneven_pace": 0.25, "longer_retention": 20, "mirror": True,
            "warp": 0.05, "plain_steps": 2000,
        },
    ),
    # For the nano policy on object slots, on a CPU.
    "camo-state": Recipe(
        horizon=8,
        objective={"action_steps": 24, "flow_time_power": 2, "proprioception_noise": 0.03},
        training={
            "minutes": 3.4, "batch": 4, "optimizer": "muon", "learning_rate": 2e-3, "warmup_steps": 30, "beta2": 0.99,
            "gradient_clip": 1, "ema_decay": 0.99, "rest_emphasis": 0.1,
        },
    ),
}  # fmt: skip


def with_recipe(arguments: list[str]) -> list[str]:
    """The arguments of a command line, with the options of the recipe that they name in front of their own."""
    # --name=value is --name value.
    words = [word for each in arguments for word in (each.split("=", 1) if each.startswith("--") else [each])]
    named = {value for option, value in pairwise(words) if option == "--recipe"}
    recipe = next((recipe for name, recipe in RECIPES.items() if name in named), None)
    if arguments[:1] != ["train"] or recipe is None:
        return arguments
    options = recipe.options()
    if "--steps" in words:
        del options["--minutes"]  # the budget is given one way or the other
    if "--start-from" in words:
        del options["--horizon"]  # the policy decides it
    return [arguments[0], *(word for option, values in options.items() for word in (option, *values)), *arguments[1:]]
