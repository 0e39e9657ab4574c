"""The command `chameleon`: one function per subcommand; tyro makes the options from their signatures.

Each command imports what it needs: recording does not wait for torch, and the policy does not need MuJoCo.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import tyro

from chameleon_policy.cli.demonstrations import data, play, record
from chameleon_policy.cli.insight import probe, report
from chameleon_policy.cli.robots import export, run, serve
from chameleon_policy.cli.scores import bench, demo, evaluate, reproduce
from chameleon_policy.cli.training import params, train
from chameleon_policy.train.recipes import with_recipe

COMMANDS: dict[str, Callable[..., Any]] = {
    "params": params, "demo": demo, "record": record, "train": train, "eval": evaluate, "reproduce": reproduce,
    "bench": bench, "probe": probe, "report": report, "serve": serve, "run": run, "export": export, "data": data,
    "play": play,
}  # fmt: skip
app = tyro.extras.SubcommandApp()
for _name, _command in COMMANDS.items():
    app.command(name=_name)(_command)


def main() -> None:
    """Run the command line; what the user did wrong is said in one line, without a traceback."""
    try:
        app.cli(
            prog="chameleon", description="Chameleon: a visuomotor policy that remembers.", args=with_recipe(sys.argv[1:])
        )
    except (ValueError, OSError, ImportError) as error:
        print(f"chameleon: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("chameleon: interrupted", file=sys.stderr)
        sys.exit(130)
