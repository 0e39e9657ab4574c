"""Writes tables of the documents from `docs/results/`: no number is typed by hand.

    python -m benchmarks.tables

A table stands below its marker, `<!-- table: half-lives -->`; a test says that writing it again changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import tyro

from benchmarks.delayed_question import KINDS
from chameleon_policy.camo.scoring import Rate

COMMAND = "python -m benchmarks.tables"
ROOT = Path(__file__).parents[1]
FOR_EVER = 1_000_000
"""Control steps."""


def main() -> None:
    """Write every table into its page."""
    for marker, (page, _, _) in TABLES.items():
        path = ROOT / page
        path.write_text(replaced(path.read_text(), f"<!-- table: {marker} -->", table(marker), page))
        print(f"{page}: {marker}")


def table(marker: str) -> str:
    """Make the text of a table."""
    _, name, make = TABLES[marker]
    result: dict[str, Any] = json.loads((ROOT / "docs/results" / name).read_text())["result"]
    return make(result)


def replaced(page: str, marker: str, text: str, where: object = "the page") -> str:
    """Return the page with the table below a marker replaced."""
    before, found, after = page.partition(f"{marker}\n")
    if not found:
        raise ValueError(f"{where} has no line {marker}")
    rest = after.splitlines(keepends=True)
    while rest and rest[0].startswith("|"):
        rest.pop(0)
    return f"{before}{found}{text}\n{''.join(rest)}"


def markdown(heading: str, rows: list[list[str]]) -> str:
    """Lay out a table; the cells of its heading are separated by bars."""
    columns = heading.split("|")
    lines = [f"| {' | '.join(cell.strip() for cell in columns)} |", "|---" * len(columns) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def half_lives(result: Mapping[str, Any]) -> str:
    """Show how long heads remember on still inputs, in control steps."""
    rows = []
    for row in result["rows"]:
        shortest, longest = row["set_to"]
        quantiles = " / ".join(_steps(value) for value in row["quantiles"])
        rows.append(
            [
                row["policy"],
                row["layer"],
                f"{shortest:g} to {longest:g}",
                "-" if row["limit"] is None else f"{row['limit']:g}",
                quantiles,
                f"{row['above_64']:.0%}",
            ]
        )
    return markdown("policy | layer | set to | limit | 5 / 25 / 50 / 75 / 95 % of the heads | above 64 steps", rows)


def _steps(value: float) -> str:
    if value > FOR_EVER:
        return f"> {FOR_EVER:,}"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def small_cards(result: Mapping[str, Any]) -> str:
    """Show what the hungriest kernels need of cards."""
    rows = []
    for row in result["rows"]:
        spilled = "0" if row["spilled_bytes"] == 0 else f"{row['spilled_bytes']} (`{row['most_spilled']}`)"
        rows.append([
            f"{row['card']}: {row['names']}", f"`{row['preset']}`", str(len(row["kernels"])),
            f"{row['shared_kib']:.0f} of {row['card_kib']} (`{row['largest']}`)", str(row["registers"]), spilled,
        ])  # fmt: skip
    heading = "card | preset | kernels | shared memory of a block, KiB | registers of a thread | spilled bytes of a thread"
    return markdown(heading, rows)


def delayed_question(result: Mapping[str, Any]) -> str:
    """Show the score of every training seed of every method."""
    trainings = {tuple(row[name] for name in ("steps", "batch", "optimizer", "learning_rate")) for row in result["rows"]}
    if len(trainings) > 1:
        raise ValueError(f"one table, one way of training: {sorted(trainings)}")
    columns = list(dict.fromkeys((row["task"], count) for row in result["rows"] for count in _counts(row)))
    rows = []
    present = {row["method"] for row in result["rows"]}
    for method in (method for method in KINDS if method in present):
        cells = []
        for task, count in columns:
            found = sorted(
                (row["seed"], Rate.from_dict(row["scores"][count]).value)
                for row in result["rows"] if (row["method"], row["task"]) == (method, task)
            )  # fmt: skip
            cells.append(", ".join(f"{100 * value:.0f}" for _, value in found) or "-")
        rows.append([f"`{method}`", *cells])
    return markdown(" | ".join(["method", *(_named(task, count) for task, count in columns)]), rows)


def _counts(row: Mapping[str, Any]) -> list[str]:
    counts = sorted(row["scores"], key=int)
    return counts if row["task"] == "tracking" else counts[-1:]


def _named(task: str, count: str) -> str:
    return f"tracking, {count} swaps" if task == "tracking" else f"question, {count} items"


TABLES: dict[str, tuple[str, str, Callable[[Mapping[str, Any]], str]]] = {
    "half-lives": ("docs/deviations.md", "half-lives.json", half_lives),
    "small-cards": ("docs/performance.md", "small-cards.json", small_cards),
    "delayed-question": ("docs/baselines.md", "delayed-question.json", delayed_question),
}
"""Marker -> page, result file, and what makes the table."""


if __name__ == "__main__":
    tyro.cli(main, prog=COMMAND)
