"""Where a memory fails, for tasks whose answers have several parts: the first choice, a later one, or only the order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from chameleon_policy.camo import Rate
from chameleon_policy.report.comparison.cells import NOT_RUN, Cell, Column, Comparison, Line
from chameleon_policy.report.comparison.paper import NAMES, REFERENCE
from chameleon_policy.report.comparison.statistics import NO_CHOICE

Row = Mapping[str, Any]
Pair = tuple[str, str]
"""The answer of an episode and what was chosen, a digit for each part."""
ORDINALS = ("first", "second", "third", "fourth", "fifth")


def choices_comparison(
    title: str, task: str, sections: Mapping[str, Sequence[str]], by_method: Mapping[str, Sequence[Row]]
) -> Comparison | None:
    """The choices of one task part by part; None if its answers have one part, or rows do not tell what was chosen."""
    chosen = {
        method: pairs(row for row in rows if row["task"] == task and "choices" in row) for method, rows in by_method.items()
    }
    parts = max((len(answer) for found in chosen.values() for answer, _ in found), default=0)
    if parts < 2:
        return None
    columns = [Column("Method"), *(Column("Right choices", name) for name in ("first", *map(_after, range(1, parts))))]
    columns.append(Column("Wrong episodes: only the order"))
    lines = {
        section: [_line(method, chosen.get(method, []), parts) for method in methods]
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
    every = (pair for row in rows for pair in zip(row["answers"].split(" "), row["choices"].split(" "), strict=True))
    return [(answer, choice) for answer, choice in every if choice != NO_CHOICE]


def right_in_turn(found: Iterable[Pair], part: int) -> Rate:
    """How often this part was right, of the episodes in which all parts before it were."""
    asked = [(answer, choice) for answer, choice in found if answer[:part] == choice[:part]]
    return Rate.of(sum(answer[part] == choice[part] for answer, choice in asked), len(asked))


def only_the_order(found: Iterable[Pair]) -> Rate:
    """How many of the wrong episodes have the right parts in another order."""
    wrong = [(answer, choice) for answer, choice in found if answer != choice]
    return Rate.of(sum(sorted(answer) == sorted(choice) for answer, choice in wrong), len(wrong))


def _after(part: int) -> str:
    before = "it" if part == 1 else "both" if part == 2 else "all before"
    return f"{ORDINALS[part]}, after {before}"


def _line(method: str, found: Sequence[Pair], parts: int) -> Line:
    rates = [*(right_in_turn(found, part) for part in range(parts)), only_the_order(found)]
    cells = [Cell.of(rate) for rate in rates] if found else [Cell(NOT_RUN)] * len(rates)
    return Line((Cell(NAMES.get(method, method)), *cells), emphasised=method == REFERENCE)
