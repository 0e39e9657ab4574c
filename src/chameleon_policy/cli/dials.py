"""What `record`, `play` and `eval` let people turn on a Camo task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import tyro

CamoTask = tyro.conf.Positional[str]


@dataclass(frozen=True)
class Dials:
    """What `record` and `play` let people turn on a Camo task."""

    nuisance: Literal["none", "mild", "strong"] = "none"
    """Variation of light, colours and cameras."""
    retention_steps: str = "3-10"
    """Control steps between evidence and decision: a number, or a range like 3-10."""
    swaps: str | None = None
    """Shell game: how often cups change places, 0 to 6 (a number or a range; default 1-2)."""
    distractor_hovers: str | None = None
    """Clean plate: plates that the hand only hovers over, 0 to 2 (a number or a range; default 0-2)."""

    @property
    def difficulty(self) -> dict[str, Any]:
        """The task's own dials, where they were turned."""
        turned = {"swaps": self.swaps, "distractor_hovers": self.distractor_hovers}
        return {name: span(name, text) for name, text in turned.items() if text is not None}

    @property
    def retention(self) -> int | tuple[int, int]:
        """Steps of retention as a number or a pair."""
        return span("retention_steps", self.retention_steps)


FlatDials = Annotated[Dials, tyro.conf.OmitArgPrefixes]
UNTURNED = Dials()


def span(name: str, text: str) -> int | tuple[int, int]:
    """A number, or a range like 3-10."""
    ends = text.split("-")
    if len(ends) > 2 or not all(end.strip().isdecimal() for end in ends):
        raise ValueError(f"--{name.replace('_', '-')} must be a number like 5 or a range like 3-10, got {text!r}")
    return int(ends[0]) if len(ends) == 1 else (int(ends[0]), int(ends[1]))
