"""A Markdown table below its marker in a page, and cells that several tables share."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chameleon_policy.rates import Rate, interval

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs/results"
Result = Mapping[str, Any]
Rows = list[list[str]]


@dataclass(frozen=True)
class Table:
    """The function that makes a table, its result files in `docs/results`, and its pages."""

    make: Callable[..., str]
    files: tuple[str, ...]
    pages: tuple[str, ...]

    def text(self) -> str:
        """Make the table from its result files."""
        return self.make(*map(read_result, self.files))


def read_result(name: str) -> Any:
    """Return the content of a result file, without its provenance."""
    document = json.loads((RESULTS / name).read_text())
    return document["rows"] if "rows" in document else document["result"]


def write(name: str, table: Table) -> None:
    """Write a table into each of its pages."""
    for page in table.pages:
        path = ROOT / page
        path.write_text(replaced(path.read_text(), name, table.text(), page))


def replaced(page: str, name: str, text: str, where: object = "the page") -> str:
    """Return the page with the table below the marker of that name replaced."""
    marker = f"<!-- table: {name} -->"
    before, found, after = page.partition(f"{marker}\n")
    if not found:
        raise ValueError(f"{where} has no line {marker}")
    rest = after.splitlines(keepends=True)
    while rest and rest[0].startswith("|"):
        rest.pop(0)
    return f"{before}{found}{text}\n{''.join(rest)}"


def markdown(heading: str, rows: Rows) -> str:
    """Lay out a table; the cells of its heading are separated by bars."""
    columns = heading.split("|")
    lines = [f"| {' | '.join(cell.strip() for cell in columns)} |", "|---" * len(columns) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def rate_cell(numbers: Result) -> str:
    """Format a rate and its 95 % interval in per cent; other keys of `numbers` are ignored."""
    names = ("value", "low", "high", "count")
    return interval(Rate.from_dict({name: numbers[name] for name in names}))


def rate_cells(scores: Result, names: Iterable[str] = ("msr", "dsr", "sr")) -> list[str]:
    """Format several rates of an evaluation, by default MSR, DSR and SR."""
    return [rate_cell(scores[name]) for name in names]


def gib(row: Result) -> str:
    """Format a peak of memory in GiB."""
    return f"{row['peak_memory_bytes'] / 2**30:.1f} GiB"
