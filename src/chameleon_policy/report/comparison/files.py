"""The tables beside the results they are made of."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from chameleon_policy.report.comparison.latex import latex
from chameleon_policy.report.comparison.markdown import markdown
from chameleon_policy.report.comparison.page import page
from chameleon_policy.report.comparison.statistics import Row
from chameleon_policy.report.comparison.table import comparisons
from chameleon_policy.report.comparison.terminal import terminal_table


def draw_tables(results: Path, rows: Sequence[Row], console: Console) -> None:
    """Print the tables, and write them as Markdown, LaTeX and HTML under the name of the
    results.
    """
    if not rows:
        raise ValueError(
            f"{results} has no rows to draw; run the bench first, without --table-only"
        )
    tables = comparisons(rows)
    contents = {".md": markdown(tables), ".tex": latex(tables), ".html": page(tables)}
    for ending, content in contents.items():
        path = results.with_suffix(ending)
        unfinished = path.with_name(f".{path.name}.unfinished")
        unfinished.write_text(content)
        unfinished.replace(path)
    for table in tables[:-1]:  # the last one is the paper's
        console.print(terminal_table(table, console.width))
    console.print(
        f"Tables: {results.with_suffix('')}{{{','.join(contents)}}}",
        highlight=False,
        soft_wrap=True,
    )
