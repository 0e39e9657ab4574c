"""Count the parameters of a policy."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import tyro

from chameleon_policy.console import Terminal
from chameleon_policy.policy import ChameleonPolicy, parameter_budget
from chameleon_policy.policy.presets import PresetName, budget_features, preset
from chameleon_policy.report.tables import budget_table


def main(
    size: tyro.conf.Positional[PresetName] = "paper",
    as_json: Annotated[bool, tyro.conf.arg(name="json"), tyro.conf.FlagCreatePairsOff] = False,
) -> None:
    """Print the parameter budget of a preset next to the paper's.

    Args:
        size: Preset of the policy.
        as_json: Print the integers as JSON and nothing else.
    """
    policy = ChameleonPolicy(preset(size), budget_features(), with_control_jepa=False)
    budget = parameter_budget(policy)
    if as_json:
        print(json.dumps(asdict(budget), indent=2))
    else:
        Terminal().print(budget_table(budget, beside_paper=size == "paper"))
