"""Commands run in this process, and their output independent of the width of the terminal."""

from __future__ import annotations

import re
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from subprocess import CompletedProcess
from unittest.mock import patch

from chameleon_policy.cli import main


def chameleon_here(*arguments: object) -> CompletedProcess[str]:
    """Run `chameleon` in this process, which saves the seconds of importing torch."""
    typed, status = ["chameleon", *map(str, arguments)], 0
    output, errors = StringIO(), StringIO()
    with patch.object(sys, "argv", typed), redirect_stdout(output), redirect_stderr(errors):
        try:
            main()
        except SystemExit as stopped:
            status = stopped.code if isinstance(stopped.code, int) else 1
    return CompletedProcess(typed, status, output.getvalue(), errors.getvalue())


def plain(text: str) -> str:
    """Return the text of an output without frames and line breaks."""
    return " ".join(re.sub("[╭╮╰╯│─]", " ", text).split())
