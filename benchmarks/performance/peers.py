"""Run other people's code, which may not be installed or may not run here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def reported(name: str, left_out: dict[str, Any]) -> Iterator[None]:
    """Note in `left_out` why a peer cannot be run, instead of ending the run."""
    try:
        yield
    except (ImportError, KeyError, RuntimeError, AssertionError, ValueError, TypeError) as error:
        message = str(error).splitlines()[0] if str(error) else ""
        left_out[name] = {"left_out": f"{type(error).__name__}: {message}"[:200]}
        print(f"{name} left out: {left_out[name]['left_out']}", flush=True)
