"""Choices part by part, for tasks whose answers have several parts.

A table shows the first choice, the later ones, and wrong episodes in which only the order is wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from chameleon_policy.rates import Rate
from chameleon_policy.report.comparison.cells import NOT_RUN, Cell, Comparison, Heading, Line
from chameleon_policy.report.comparison.outcomes import NO_CHOICE, Row
from chameleon_policy.report.paper import NAMES, REFERENCE

Pair = tuple[str, str]
"""The answer of an episode and the choice made in it, a digit for each part."""
NOT_KEPT = "not kept"
"""For rows of an older bench, which do not keep the choices."""
LATER = ("second, after it", "third, after both")
"""Headings of the choices after the first one; Camo's longest answer has three parts."""


def choices_comparison(
    title: str,
    task: str,
    sections: Mapping[str, Sequence[str]],
    by_method: Mapping[str, Sequence[Row]],
) -> Comparison | None:
    """Compare the choices of one task; None if its answers have one part, or no row keeps them."""
    played = {
        method: [row for row in rows if row["task"] == task] for method, rows in by_method.items()
    }
    kept = [row for rows in played.values() for row in rows if "answers" in row]
    parts = max((len(answer) for row in kept for answer in row["answers"].split(" ")), default=0)
    if parts < 2:
        return None
    headings = (
        Heading("Method"),
        *(Heading("Right choices", name) for name in ("first", *LATER[: parts - 1])),
        Heading("Wrong episodes: only the order"),
    )
    lines = {
        section: [_line(method, played.get(method, []), parts) for method in methods]
        for section, methods in sections.items()
    }
    notes = (
        f"In per cent, with 95 % Wilson intervals, over the episodes of {task} whose manipulation "
        "counts.",
        "A later choice is counted where all choices before it were right: its errors are its own.",
        "Only the order: all parts of the answer were chosen, but not one after another as they "
        "were shown.",
    )
    return Comparison(f"{title}: {task}, choice by choice", headings, lines, notes)


def pairs(rows: Iterable[Row]) -> list[Pair]:
    """Return answer and choice of all episodes in which a choice was made."""
    every = (
        pair
        for row in rows
        for pair in zip(row["answers"].split(" "), row["choices"].split(" "), strict=True)
    )
    return [(answer, choice) for answer, choice in every if choice != NO_CHOICE]


def right_in_turn(found: Iterable[Pair], part: int) -> Rate:
    """Return how often this part was right, of the episodes in which all parts before it were."""
    asked = [(answer, choice) for answer, choice in found if answer[:part] == choice[:part]]
    return Rate.of(sum(answer[part] == choice[part] for answer, choice in asked), len(asked))


def only_the_order(found: Iterable[Pair]) -> Rate:
    """Return the share of wrong episodes that have the right parts in another order."""
    wrong = [(answer, choice) for answer, choice in found if answer != choice]
    return Rate.of(sum(sorted(answer) == sorted(choice) for answer, choice in wrong), len(wrong))


def _line(method: str, rows: Sequence[Row], parts: int) -> Line:
    cells = [Cell(NOT_RUN if not rows else NOT_KEPT)] * (parts + 1)
    if rows and all("choices" in row for row in rows):
        found = pairs(rows)
        turns = (right_in_turn(found, part) for part in range(parts))
        cells = [Cell.of(rate) for rate in (*turns, only_the_order(found))]
    return Line((Cell(NAMES.get(method, method)), *cells), emphasised=method == REFERENCE)
