"""The command `chameleon`: one function per subcommand; tyro makes the options from their signatures."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Annotated, Literal

import tyro
from rich.console import Console

from chameleon_policy.demo import stream_demo
from chameleon_policy.policy import ChameleonPolicy, parameter_budget
from chameleon_policy.policy.presets import budget_features, preset
from chameleon_policy.report.budget_table import budget_table

app = tyro.extras.SubcommandApp()
Preset = Literal["paper", "small", "nano"]


@app.command(name="params")
def params(
    size: tyro.conf.Positional[Preset] = "paper",
    as_json: Annotated[bool, tyro.conf.arg(name="json"), tyro.conf.FlagCreatePairsOff] = False,
) -> None:
    """Print the parameter budget beside the paper's.

    Args:
        size: Preset of the policy.
        as_json: Print the integers as JSON and nothing else.
    """
    policy = ChameleonPolicy(preset(size), budget_features(), with_control_jepa=False)
    budget = parameter_budget(policy)
    if as_json:
        print(json.dumps(asdict(budget), indent=2))
    else:
        Console().print(budget_table(budget, beside_paper=size == "paper"))


@app.command(name="demo")
def demo(control_steps: int = 48, seed: int = 0) -> None:
    """Build the paper-size policy, stream random observations through it, print its budget and its timings.

    Args:
        control_steps: Observations to stream; a chunk of actions is sampled every half horizon.
        seed: Seed of the weights, observations and noise.
    """
    stream_demo(control_steps=control_steps, seed=seed)


def main() -> None:
    """Run the command line; what the user did wrong is said in one line, without a traceback."""
    try:
        app.cli(prog="chameleon", description="Chameleon: a visuomotor policy that remembers.")
    except (ValueError, FileNotFoundError, ImportError) as error:
        print(f"chameleon: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
