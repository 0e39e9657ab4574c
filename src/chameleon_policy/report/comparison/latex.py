"""Comparisons in LaTeX, with booktabs."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from chameleon_policy.report.comparison.cells import Cell, Comparison, Line

SPECIAL = {
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
HEAD = "% Include it with \\input; it needs \\usepackage{booktabs} and \\usepackage{graphicx}.\n"


def latex(tables: Iterable[Comparison]) -> str:
    """All tables, one below the other."""
    return HEAD + "\n".join(_table(table) for table in tables)


def escape(text: str) -> str:
    """Text that LaTeX prints as it is."""
    return "".join(SPECIAL.get(letter, letter) for letter in text)


def _table(table: Comparison) -> str:
    width = len(table.columns)
    body = [r"\toprule", *_heading(table)]
    for title, lines in table.sections.items():
        body.append(r"\midrule")
        body.append(rf"\multicolumn{{{width}}}{{l}}{{\emph{{{escape(title)}}}}} \\")
        body += [_line(line) for line in lines]
    body.append(r"\bottomrule")
    rows = "\n".join(body)
    caption = escape(f"{table.title[0].upper()}{table.title[1:]}. {' '.join(table.notes)}")
    return rf"""\begin{{table*}}[t]
\centering
\resizebox{{\linewidth}}{{!}}{{%
\begin{{tabular}}{{l{"r" * (width - 1)}}}
{rows}
\end{{tabular}}}}
\caption{{{caption}}}
\end{{table*}}
"""


def _heading(table: Comparison) -> list[str]:
    """Groups, with a rule below those of several columns, and names."""
    groups, rules, first = [], [], 1
    for group, columns in groupby(table.columns, key=lambda column: column.group):
        number = len(list(columns))
        last = first + number - 1
        groups.append(
            rf"\multicolumn{{{number}}}{{{'l' if first == 1 else 'c'}}}{{{escape(group)}}}"
        )
        if number > 1:
            rules.append(rf"\cmidrule(lr){{{first}-{last}}}")
        first = last + 1
    names = " & ".join(escape(column.name) for column in table.columns)
    return [" & ".join(groups) + r" \\", "".join(rules), names + r" \\"]


def _line(line: Line) -> str:
    words = [_cell(cell) for cell in line.cells]
    if line.emphasised:
        words[0] = rf"\textbf{{{words[0]}}}"
    return " & ".join(words) + r" \\"


def _cell(cell: Cell) -> str:
    value = escape(cell.value)
    return rf"\shortstack{{{value}\\{{\tiny {escape(cell.detail)}}}}}" if cell.detail else value
