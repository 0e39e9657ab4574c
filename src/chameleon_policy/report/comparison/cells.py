"""A table of words, before it is drawn: cells in lines, lines in sections, columns in groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from chameleon_policy.rates import Rate
from chameleon_policy.report.evaluation_table import interval

NOT_RUN = "not run"


@dataclass(frozen=True)
class Cell:
    """What stands at one place."""

    value: str
    detail: str = ""
    """Smaller, behind or below it: an interval."""
    share: float | None = None
    """From 0 to 1, where it is a rate that can be drawn."""

    def __str__(self) -> str:
        return f"{self.value} {self.detail}".strip()

    @classmethod
    def of(cls, rate: Rate) -> Self:
        """A rate with its interval; a dash where nothing was counted."""
        value, _, detail = interval(rate).partition(" ")
        return cls(value, detail, rate.value if detail else None)


@dataclass(frozen=True)
class Column:
    """The heading of a column; those of one group stand side by side."""

    group: str
    name: str = ""

    def __str__(self) -> str:
        return f"{self.group} {self.name}".strip()


@dataclass(frozen=True)
class Line:
    """One method."""

    cells: tuple[Cell, ...]
    emphasised: bool = False


@dataclass(frozen=True)
class Comparison:
    """A table: its lines stand in sections; the first cell of each is a name."""

    title: str
    columns: tuple[Column, ...]
    sections: dict[str, list[Line]]
    notes: tuple[str, ...]
