"""Comparisons as one HTML page without network, for light and dark screens, wide and narrow."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from itertools import groupby

from chameleon_policy.report.comparison.cells import NOT_RUN, Cell, Comparison, Line

STYLE = """
:root { color-scheme: light dark; --ink: #22242a; --faint: #6b6e76; --paper: #fcfbf8; --card: #ffffff; --edge: #dedcd6;
        --bar: #d3e5f3; --ours: #1f6ea8; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8e6e1; --faint: #9a9ca3; --paper: #17181b; --card: #202226; --edge: #383a40; --bar: #1d4460;
          --ours: #5fb0ea; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1560px; padding: 28px 20px 60px; background: var(--paper); color: var(--ink);
       font: 15px/1.45 system-ui, sans-serif; }
h1 { font-size: 1.6rem; margin: 0 0 .3rem; } h2 { font-size: 1.05rem; margin: 2.4rem 0 .6rem; }
.scroll { overflow-x: auto; background: var(--card); border: 1px solid var(--edge); border-radius: 10px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: 5px 6px; text-align: right; white-space: nowrap; }
thead th { font-weight: 600; white-space: normal; vertical-align: bottom; }
thead tr:last-child th { border-bottom: 2px solid var(--edge); color: var(--faint);
       font-weight: 500; font-size: .82rem; }
thead th.group { text-align: center; border-left: 1px solid var(--edge); }
tbody th { text-align: left; font-weight: 500; position: sticky; left: 0; background: var(--card); }
thead tr:first-child th:first-child { text-align: left; }
tr.section th { color: var(--faint); font-size: .82rem; font-weight: 600; padding-top: 14px;
       border-top: 1px solid var(--edge); }
td.first { border-left: 1px solid var(--edge); }
td.rate { background: linear-gradient(to right, var(--bar) var(--share), transparent var(--share)) no-repeat left 6px
       bottom 3px / calc(100% - 12px) 3px; }
td small { color: var(--faint); font-size: .74rem; display: block; line-height: 1.1; padding-bottom: 4px; }
td.missing { color: var(--faint); }
tr.ours th { color: var(--ours); } tr.ours th, tr.ours td { font-weight: 650; } tr.ours small { font-weight: 400; }
ul { color: var(--faint); padding-left: 1.2em; } li { margin: .15rem 0; }
"""


def page(tables: Iterable[Comparison]) -> str:
    """One page with all tables."""
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Camo: methods compared</title><style>{STYLE}</style></head><body>
<h1>Camo: methods compared</h1>
<p>Every method is trained by the same loop on the same demonstrations, and plays the same held-out episodes.</p>
{"".join(map(_table, tables))}</body></html>
"""


def _table(table: Comparison) -> str:
    firsts = {
        place
        for place, column in enumerate(table.columns)
        if place and column.name and _begins(table, place)
    }
    body = "".join(
        f'<tr class="section"><th colspan="{len(table.columns)}">{escape(title)}</th></tr>\n'
        + "".join(_line(line, firsts) for line in lines)
        for title, lines in table.sections.items()
    )
    notes = "".join(f"<li>{escape(note)}</li>" for note in table.notes)
    title = escape(f"{table.title[0].upper()}{table.title[1:]}")
    return f"""<h2>{title}</h2>
<div class="scroll"><table><thead>{_heading(table)}</thead><tbody>
{body}</tbody></table></div>
<ul>{notes}</ul>
"""


def _begins(table: Comparison, place: int) -> bool:
    return table.columns[place].group != table.columns[place - 1].group


def _heading(table: Comparison) -> str:
    """A group of columns has a heading of its own above their names; a column that stands alone
    reaches over both rows.
    """
    above, below = "", ""
    for group, found in groupby(table.columns, key=lambda column: column.group):
        columns = list(found)
        if len(columns) == 1:
            above += f'<th rowspan="2" scope="col">{escape(group)}</th>'
            continue
        above += f'<th class="group" colspan="{len(columns)}" scope="colgroup">{escape(group)}</th>'
        below += "".join(f'<th scope="col">{escape(column.name)}</th>' for column in columns)
    return f"<tr>{above}</tr><tr>{below}</tr>"


def _line(line: Line, firsts: set[int]) -> str:
    name, cells = line.cells[0], enumerate(line.cells[1:], 1)
    ours = ' class="ours"' if line.emphasised else ""
    words = "".join(_cell(cell, first=place in firsts) for place, cell in cells)
    return f'<tr{ours}><th scope="row">{escape(str(name))}</th>{words}</tr>\n'


def _cell(cell: Cell, *, first: bool) -> str:
    kinds = {"first": first, "rate": cell.share is not None, "missing": cell.value == NOT_RUN}
    named = " ".join(kind for kind, given in kinds.items() if given)
    attributes = f' class="{named}"' if named else ""
    if cell.share is not None:
        attributes += f' style="--share:{100 * cell.share:.1f}%"'
    detail = f"<small>{escape(cell.detail)}</small>" if cell.detail else ""
    return f"<td{attributes}>{escape(cell.value)}{detail}</td>"
