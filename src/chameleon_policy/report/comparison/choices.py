"""Where a memory fails, for tasks whose answers have several parts: the first choice, a later one,
or only the order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from chameleon_policy.rates import Rate
from chameleon_policy.report.comparison.cells import NOT_RUN, Cell, Column, Comparison, Line
from chameleon_policy.report.comparison.paper import NAMES, REFERENCE
from chameleon_policy.report.comparison.statistics import NO_CHOICE, Row

Pair = tuple[str, str]
"""The answer of an episode and what was chosen, a digit for each part."""
NOT_KEPT = "not kept"
"""Rows of an older bench do not say what was chosen."""
LATER = ("second, after it", "third, after both")
"""Choices behind the first one, as columns are called; the longest answer of Camo has three
parts.
"""


def choices_comparison(
    title: str,
    task: str,
    sections: Mapping[str, Sequence[str]],
    by_method: Mapping[str, Sequence[Row]],
) -> Comparison | None:
    """The choices of one task part by part; None if its answers have one part, or rows do not tell
    what was chosen.
    """
    played = {
        method: [row for row in rows if row["task"] == task] for method, rows in by_method.items()
    }
    kept = [row for rows in played.values() for row in rows if "answers" in row]
    parts = max((len(answer) for row in kept for answer in row["answers"].split(" ")), default=0)
    if parts < 2:
        return None
    columns = [
        Column("Method"),
        *(Column("Right choices", name) for name in ("first", *LATER[: parts - 1])),
    ]
    columns.append(Column("Wrong episodes: only the order"))
    lines = {
        section: [_line(method, played.get(method, []), parts) for method in methods]
        for section, methods in sections.items()
    }
    notes = (
        f"In per cent, with 95 % Wilson intervals, over the episodes of {task} whose manipulation counts.",
        "A later choice is counted where all choices before it were right: its errors are its own.",
        "Only the order: all parts of the answer were chosen, but not one after another as they were shown.",
    )
    return Comparison(f"{title}: {task}, choice by choice", tuple(columns), lines, notes)


def pairs(rows: Iterable[Row]) -> list[Pair]:
    """Answers and choices of all episodes in which a choice was made."""
    every = (
        pair
        for row in rows
        for pair in zip(row["answers"].split(" "), row["choices"].split(" "), strict=True)
    )
    return [(answer, choice) for answer, choice in every if choice != NO_CHOICE]


def right_in_turn(found: Iterable[Pair], part: int) -> Rate:
    """How often this part was right, of the episodes in which all parts before it were."""
    asked = [(answer, choice) for answer, choice in found if answer[:part] == choice[:part]]
    return Rate.of(sum(answer[part] == choice[part] for answer, choice in asked), len(asked))


def only_the_order(found: Iterable[Pair]) -> Rate:
    """How many of the wrong episodes have the right parts in another order."""
    wrong = [(answer, choice) for answer, choice in found if answer != choice]
    return Rate.of(sum(sorted(answer) == sorted(choice) for answer, choice in wrong), len(wrong))


def _line(method: str, rows: Sequence[Row], parts: int) -> Line:
    cells = [Cell(NOT_RUN if not rows else NOT_KEPT)] * (parts + 1)
    if rows and all("choices" in row for row in rows):
        found = pairs(rows)
        cells = [
            Cell.of(rate)
            for rate in (
                *(right_in_turn(found, part) for part in range(parts)),
                only_the_order(found),
            )
        ]
    return Line((Cell(NAMES.get(method, method)), *cells), emphasised=method == REFERENCE)
