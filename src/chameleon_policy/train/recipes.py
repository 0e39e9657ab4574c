"""Recipes: options of `chameleon train` under a name. Options that are given beside a recipe count more than its own.

Where a recipe leaves the paper's settings, docs/deviations.md names the measurement that speaks for it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

RecipeName = Literal["camo"]
RECIPES: dict[RecipeName, dict[str, str]] = {
    "camo": {
        "minutes": "20",
        "batch": "32",
        "optimizer": "muon",
        "learning-rate": "1e-3",
        "beta2": "0.99",
        "gradient-clip": "1",
        "horizon": "8",
        "action-steps": "32",
        "flow-time-power": "2",
        "rest-emphasis": "0.1",
        "proprioception-noise": "0.03",
    }
}


def with_recipe(arguments: list[str]) -> list[str]:
    """The arguments of a command line, with the options of the recipe that they name in front of their own."""
    named = {value for option, value in pairwise(arguments) if option == "--recipe"}
    recipe = next((options for name, options in RECIPES.items() if name in named), None)
    if arguments[:1] != ["train"] or recipe is None:
        return arguments
    options = dict(recipe)
    if "--steps" in arguments:
        del options["minutes"]  # the budget is given one way or the other
    return [arguments[0], *(word for key, value in options.items() for word in (f"--{key}", value)), *arguments[1:]]
