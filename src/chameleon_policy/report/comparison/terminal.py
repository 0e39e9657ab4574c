"""A comparison on a terminal, which is narrow: a group of columns shares one, and intervals are
left to the files.
"""

from __future__ import annotations

from itertools import groupby

from rich.table import Table
from rich.text import Text

from chameleon_policy.camo import TASKS
from chameleon_policy.report.comparison.cells import Comparison, Line

DISPENSABLE = ("Parameters, M", "Seeds", "Paper", *TASKS)
"""Left out in this order where the terminal is too narrow."""


def terminal_table(comparison: Comparison, width: int) -> Table:
    """For rich to print in so many columns."""
    groups = _groups(comparison)
    for name in DISPENSABLE:
        if sum(_width(comparison, places) + 3 for places in groups.values()) + 1 > width:
            groups.pop(name, None)
    table = Table(title=comparison.title)
    for group, places in groups.items():
        table.add_column(
            f"{group}\n{_names(comparison, places)}".strip(),
            justify="right" if table.columns else "left",
        )
    for title, lines in comparison.sections.items():
        table.add_section()
        table.add_row(Text(title, style="italic dim"))
        for line in lines:
            table.add_row(
                *(Text(_joined(line, places)) for places in groups.values()),
                style="bold" * line.emphasised,
            )
    return table


def _groups(comparison: Comparison) -> dict[str, list[int]]:
    numbered = groupby(enumerate(comparison.columns), key=lambda pair: pair[1].group)
    return {group: [place for place, _ in columns] for group, columns in numbered}


def _width(comparison: Comparison, places: list[int]) -> int:
    words = [comparison.columns[places[0]].group, _names(comparison, places)]
    words += [_joined(line, places) for lines in comparison.sections.values() for line in lines]
    return max(map(len, [*words, *comparison.sections] if places == [0] else words))


def _names(comparison: Comparison, places: list[int]) -> str:
    return " / ".join(comparison.columns[place].name.split(" (")[0] for place in places)


def _joined(line: Line, places: list[int]) -> str:
    values = [line.cells[place].value for place in places]
    alike = len(set(values)) == 1 and not values[0][0].isdigit()
    return values[0] if alike else " / ".join(values)
