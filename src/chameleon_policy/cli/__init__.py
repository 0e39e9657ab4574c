"""The command `chameleon`: one module per subcommand, with options from its function `main`.

Only the module of the typed command is imported: recording does not import torch, and training does
not need MuJoCo.
"""

from __future__ import annotations

import ast
import difflib
import sys
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from chameleon_policy import __version__
from chameleon_policy.cli.options import needs
from chameleon_policy.cli.parsing import parse
from chameleon_policy.console import printable
from chameleon_policy.exit_codes import INTERRUPTED, NO_ROOM, REFUSED
from chameleon_policy.threads import wait_asleep

COMMANDS = {
    "demo": "camo,report,train",
    "record": "camo",
    "train": "train",
    "eval": "camo",
    "reproduce": "camo,train",
    "bench": "camo,train",
    "probe": "camo,report,train",
    "report": "camo,report,train",
    "serve": "serve",
    "run": "camo,serve",
    "export": "export",
    "data": "camo",
    "play": "camo",
    "params": "",
}
"""Every command, with the extras that it needs."""


def main() -> None:
    """Run the command line; report errors that a user can fix in one line, without a traceback."""
    name, *arguments = sys.argv[1:] or ["--help"]
    if name in ("-h", "--help"):
        print(overview())
        return
    if name == "--version":
        print(f"chameleon {__version__}")
        return
    warnings.formatwarning = lambda message, *_, **__: f"chameleon: {message}\n"
    wait_asleep()  # commands import torch, which reads then how its threads wait
    try:
        prepared(name, arguments)()
    except (ValueError, OSError, ImportError) as error:
        print(f"chameleon: {printable(str(error))}", file=sys.stderr)
        sys.exit(REFUSED)
    except MemoryError as error:
        print(f"chameleon: {printable(str(error))}", file=sys.stderr)
        sys.exit(NO_ROOM)
    except KeyboardInterrupt:
        print("chameleon: interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)


def prepared(name: str, arguments: list[str]) -> Callable[[], Any]:
    """Import a command and return it with these options, ready to run."""
    if name not in COMMANDS:
        close = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(COMMANDS)}"
        raise ValueError(f"there is no command {name!r}; {hint}")
    with needs(COMMANDS[name]):
        module = import_module(f"chameleon_policy.cli.{name}")
    # Options of training have defaults that depend on the recipe.
    command = module.command(arguments) if hasattr(module, "command") else module.main
    return parse(command, f"chameleon {getattr(module, 'WORDS', name)}", arguments)


def overview() -> str:
    """List the commands, each with the first line of its module's docstring."""
    lines = ["usage: chameleon COMMAND [OPTIONS]", "", "A visuomotor policy that remembers.", ""]
    for name in COMMANDS:
        docstring = ast.get_docstring(ast.parse((Path(__file__).parent / f"{name}.py").read_text()))
        lines.append(f"  {name:<10} {(docstring or '').splitlines()[0]}")
    return "\n".join([*lines, "", "chameleon COMMAND --help lists the options of one."])
