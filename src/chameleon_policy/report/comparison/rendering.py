"""Comparisons on a terminal, and as files in Markdown, LaTeX and HTML."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from chameleon_policy.console import printable
from chameleon_policy.report.comparison.cells import NOT_RUN, Cell, Comparison, Line
from chameleon_policy.report.comparison.methods import PAPER_TITLE, comparisons
from chameleon_policy.report.comparison.outcomes import Row
from chameleon_policy.report.pages import render
from chameleon_policy.suite import DEFAULT_SUITE, suite_named
from chameleon_policy.writing import whole_file

DISPENSABLE = ("Parameters, M", "Seeds", "Paper")
"""Groups of columns that a narrow terminal leaves out, in this order; then those of the tasks."""
LATEX_SPECIAL = {
    "\\": r"\textbackslash{}",
    "%": r"\%",
    "_": r"\_",
    "&": r"\&",
    "#": r"\#",
    "$": r"\$",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": "$<$",
    ">": "$>$",
}
LATEX_HEAD = (
    "% Include it with \\input; it needs \\usepackage{booktabs} and \\usepackage{graphicx}.\n"
)


def draw_tables(
    results: Path, rows: Sequence[Row], console: Console, suite: str = DEFAULT_SUITE
) -> None:
    """Print the tables, and write them next to the results as .md, .tex and .html."""
    if not rows:
        raise ValueError(
            f"{results} has no rows to draw; run the bench first, without --table-only"
        )
    tables = comparisons(rows, suite)
    contents = {".md": markdown(tables), ".tex": latex(tables), ".html": page(tables, suite)}
    for ending, content in contents.items():
        path = results.with_suffix(ending)
        with whole_file(path) as unfinished:
            unfinished.write_text(content)
    for table in tables:
        if table.title != PAPER_TITLE:
            console.print(terminal_table(table, console.width, suite_named(suite).tasks))
    console.print(
        f"Tables: {results.with_suffix('')}{{{','.join(contents)}}}",
        highlight=False,
        soft_wrap=True,
    )


def page(tables: Sequence[Comparison], suite: str = DEFAULT_SUITE) -> str:
    """Return one HTML page with all tables, which needs no network."""
    title = f"{suite.capitalize()}: methods compared"
    return render("comparison.html", title=title, tables=tables, not_run=NOT_RUN, facts=())


def markdown(tables: Sequence[Comparison]) -> str:
    """Return all tables in Markdown, one below the other."""
    return "\n".join(map(_markdown_table, tables))


def _markdown_table(table: Comparison) -> str:
    width = len(table.headings)
    headings = [_escape_markdown(str(heading)) for heading in table.headings]
    lines = [f"### {_escape_markdown(table.title)}", "", _markdown_row(headings)]
    lines.append(_markdown_row(["---"] + ["---:"] * (width - 1)))
    for title, section in table.sections.items():
        # Markdown has no rules between sections: a line with the title and dots stands for one.
        lines.append(_markdown_row([f"*{_escape_markdown(title)}*"] + ["·"] * (width - 1)))
        for line in section:
            name, *cells = (_escape_markdown(str(cell)) for cell in line.cells)
            lines.append(_markdown_row([f"**{name}**" if line.emphasised else name, *cells]))
    return "\n".join([*lines, "", *(f"- {_escape_markdown(note)}" for note in table.notes), ""])


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escape_markdown(text: str) -> str:
    return text.replace("*", r"\*").replace("|", r"\|").replace("<", "&lt;")


def latex(tables: Sequence[Comparison]) -> str:
    """Return all tables in LaTeX (booktabs), one below the other."""
    return LATEX_HEAD + "\n".join(map(_latex_table, tables))


def escape_latex(text: str) -> str:
    """Return text that LaTeX prints as it is."""
    return "".join(LATEX_SPECIAL.get(letter, letter) for letter in text)


def _latex_table(table: Comparison) -> str:
    width = len(table.headings)
    body = [r"\toprule", *_latex_heading(table)]
    for title, lines in table.sections.items():
        body.append(r"\midrule")
        body.append(rf"\multicolumn{{{width}}}{{l}}{{\emph{{{escape_latex(title)}}}}} \\")
        for line in lines:
            name, *cells = map(_latex_cell, line.cells)
            body.append(
                " & ".join([rf"\textbf{{{name}}}" if line.emphasised else name, *cells]) + r" \\"
            )
    rows = "\n".join([*body, r"\bottomrule"])
    caption = escape_latex(f"{table.title[0].upper()}{table.title[1:]}. {' '.join(table.notes)}")
    return rf"""\begin{{table*}}[t]
\centering
\resizebox{{\linewidth}}{{!}}{{%
\begin{{tabular}}{{l{"r" * (width - 1)}}}
{rows}
\end{{tabular}}}}
\caption{{{caption}}}
\end{{table*}}
"""


def _latex_heading(table: Comparison) -> list[str]:
    """Return the groups, a rule below those of several columns, and the names."""
    groups, rules = [], []
    for group, indices in table.groups().items():
        place = "c" if indices[0] else "l"
        groups.append(rf"\multicolumn{{{len(indices)}}}{{{place}}}{{{escape_latex(group)}}}")
        if len(indices) > 1:
            rules.append(rf"\cmidrule(lr){{{indices[0] + 1}-{indices[-1] + 1}}}")
    names = " & ".join(escape_latex(heading.name) for heading in table.headings)
    return [" & ".join(groups) + r" \\", "".join(rules), names + r" \\"]


def _latex_cell(cell: Cell) -> str:
    value = escape_latex(cell.value)
    if not cell.detail:
        return value
    return rf"\shortstack{{{value}\\{{\tiny {escape_latex(cell.detail)}}}}}"


def terminal_table(comparison: Comparison, width: int, tasks: Sequence[str]) -> Table:
    """Return a table for so many letters: a group of columns shares one, without intervals."""
    groups = comparison.groups()
    for name in (*DISPENSABLE, *tasks):
        if sum(_width(comparison, indices) + 3 for indices in groups.values()) + 1 > width:
            groups.pop(name, None)
    table = Table(title=comparison.title)
    for group, indices in groups.items():
        table.add_column(
            f"{group}\n{_names(comparison, indices)}".strip(),
            justify="right" if table.columns else "left",
        )
    for title, lines in comparison.sections.items():
        table.add_section()
        table.add_row(Text(printable(title), style="italic dim"))
        for line in lines:
            table.add_row(
                *(Text(printable(_joined(line, indices))) for indices in groups.values()),
                style="bold" * line.emphasised,
            )
    return table


def _width(comparison: Comparison, indices: list[int]) -> int:
    words = [comparison.headings[indices[0]].group, _names(comparison, indices)]
    words += [_joined(line, indices) for lines in comparison.sections.values() for line in lines]
    return max(map(len, [*words, *comparison.sections] if indices == [0] else words))


def _names(comparison: Comparison, indices: list[int]) -> str:
    return " / ".join(comparison.headings[index].name.split(" (")[0] for index in indices)


def _joined(line: Line, indices: list[int]) -> str:
    values = [line.cells[index].value for index in indices]
    alike = len(set(values)) == 1 and not values[0][0].isdigit()
    return values[0] if alike else " / ".join(values)
