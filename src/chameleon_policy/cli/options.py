"""Options that several commands share."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import tyro

UNSET = tyro.conf.arg(help_behavior_hint="")
"""For an option that is None by default: its own help says what happens then."""
TASK = tyro.conf.arg(metavar="TASK")
TASKS = tyro.conf.arg(metavar="TASK", help_behavior_hint="")
POLICY = tyro.conf.arg(metavar="POLICY")
POLICIES = tyro.conf.arg(metavar="POLICY [POLICY ...]", help_behavior_hint="(required)")
"""How `--help` shows the values of options for tasks and policies."""


def typed() -> str:
    """Return the command as it was typed, for the files that it writes."""
    return " ".join(["chameleon", *sys.argv[1:]])


@contextmanager
def needs(extras: str) -> Iterator[None]:
    """Say how to install these extras where one of their packages is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if str(error.name).startswith("chameleon_policy"):
            raise
        if "serve" in extras:  # the client of the server is a package of its own in the repository
            install = f"pip install -e packages/chameleon_client -e '.[{extras}]'"
        else:
            install = f"pip install 'chameleon-policy[{extras}]'"
        raise ImportError(f"this command needs {error.name}: {install}") from error


OWN = ("cups", "swaps", "distractor_hovers", "length", "questions", "shown")
"""Dials that only some tasks have."""


@dataclass(frozen=True)
class Dials:
    """Appearance and difficulty of a Camo task."""

    nuisance: Literal["none", "mild", "strong"] = "none"
    """Variation of light, colours and cameras."""
    retention_steps: str = "3-10"
    """Control steps between evidence and decision: a number, or a range like 3-10."""
    cups: Annotated[str | None, UNSET] = None
    """How many cups, a number or a range: 3 to 5 in shell-game (default: 3), 3 to 8 in pantry
    (default: 6)."""
    swaps: Annotated[str | None, UNSET] = None
    """Shell game: how often cups are swapped, a number or a range, 0 to 8 (default: 1-2)."""
    distractor_hovers: Annotated[str | None, UNSET] = None
    """Clean plate: plates that the hand only hovers over, 0 to 2 (default: 0-2)."""
    length: Annotated[str | None, UNSET] = None
    """Seasonings: how many are added, a number or a range, 1 to 6 (default: 3)."""
    questions: Annotated[str | None, UNSET] = None
    """Pantry: how many cards ask, a number or a range, 1 to 3 (default: 2)."""
    shown: Annotated[str | None, UNSET] = None
    """Pantry: how many cups are lifted before, a number or a range, 1 to 8 (default: all; in
    recordings 1-8)."""

    @property
    def settings(self) -> dict[str, Any]:
        """Dials that differ from their defaults, as settings of an environment or a recording.

        A task's own dials are in `difficulty`.
        """
        own = {name: getattr(self, name) for name in OWN}
        settings: dict[str, Any] = {}
        if self.nuisance != Dials.nuisance:
            settings["nuisance"] = self.nuisance
        if self.retention_steps != Dials.retention_steps:
            settings["retention_steps"] = span("retention_steps", self.retention_steps)
        difficulty = {name: span(name, text) for name, text in own.items() if text is not None}
        return settings | ({"difficulty": difficulty} if difficulty else {})


FlatDials = Annotated[Dials, tyro.conf.OmitArgPrefixes]
DEFAULT_DIALS = Dials()


def span(name: str, text: str) -> int | tuple[int, int]:
    """Parse a number, or a range like 3-10."""
    ends = text.split("-")
    if len(ends) > 2 or not all(end.strip().isdecimal() for end in ends):
        option = f"--{name.replace('_', '-')}"
        raise ValueError(f"{option} must be a number like 5 or a range like 3-10, got {text!r}")
    return int(ends[0]) if len(ends) == 1 else (int(ends[0]), int(ends[1]))
