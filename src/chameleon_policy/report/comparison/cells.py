"""A table before it is rendered: cells in lines, lines in sections, columns in groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from chameleon_policy.rates import Rate, interval

NOT_RUN = "not run"


@dataclass(frozen=True)
class Cell:
    """A value, with a detail such as its interval."""

    value: str
    detail: str = ""
    """Printed smaller, after or below the value."""
    share: float | None = None
    """From 0 to 1, for a rate that a page draws as a bar."""

    def __str__(self) -> str:
        return f"{self.value} {self.detail}".strip()

    @classmethod
    def of(cls, rate: Rate) -> Self:
        """Return a rate with its interval; a dash where nothing was counted."""
        value, _, detail = interval(rate).partition(" ")
        return cls(value, detail, rate.value if detail else None)


@dataclass(frozen=True)
class Heading:
    """The heading of a column; columns of one group stand side by side."""

    group: str
    name: str = ""

    def __str__(self) -> str:
        return f"{self.group} {self.name}".strip()


@dataclass(frozen=True)
class Line:
    """A method's cells; the first one is its name."""

    cells: tuple[Cell, ...]
    emphasised: bool = False


@dataclass(frozen=True)
class Comparison:
    """A table of methods, whose lines stand in sections."""

    title: str
    headings: tuple[Heading, ...]
    sections: dict[str, list[Line]]
    notes: tuple[str, ...]

    def groups(self) -> dict[str, list[int]]:
        """Return the indices of the columns of each group."""
        found: dict[str, list[int]] = {}
        for index, heading in enumerate(self.headings):
            found.setdefault(heading.group, []).append(index)
        return found
