"""Comparisons in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from chameleon_policy.report.comparison.cells import Comparison, Line


def markdown(tables: Iterable[Comparison]) -> str:
    """All tables, one below the other."""
    return "\n".join(_table(table) for table in tables)


def _table(table: Comparison) -> str:
    width = len(table.columns)
    lines = [f"### {table.title}", "", _row([str(column) for column in table.columns])]
    lines.append(_row(["---"] + ["---:"] * (width - 1)))
    for title, section in table.sections.items():
        # Markdown has no lines between sections: the title stands in the first cell, and dots in
        # the rest.
        lines.append(_row([f"*{title}*"] + ["·"] * (width - 1)))
        lines += [_row(_cells(line)) for line in section]
    return "\n".join([*lines, "", *(f"- {_escape(note)}" for note in table.notes), ""])


def _cells(line: Line) -> list[str]:
    words = [_escape(str(cell)) for cell in line.cells]
    return [f"**{words[0]}**", *words[1:]] if line.emphasised else words


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escape(text: str) -> str:
    return text.replace("*", r"\*").replace("|", r"\|").replace("<", "&lt;")
