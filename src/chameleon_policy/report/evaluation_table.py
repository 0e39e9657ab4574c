"""An evaluation for people: one row for all episodes, one per answer, one per value of each
dial.
"""

from __future__ import annotations

from rich.table import Table

from chameleon_policy.camo import Summary
from chameleon_policy.evaluate.camo import Evaluation
from chameleon_policy.rates import interval


def evaluation_table(evaluation: Evaluation, name: str) -> Table:
    """MSR, DSR and SR with their 95 % intervals in brackets."""
    summary = evaluation.summary
    told = " and told the answer" if evaluation.settings.kind == "told" else ""
    episodes = f"{len(evaluation.rollouts)} episodes (a guess has DSR {summary.chance:.0%})"
    title = f"{name} on {evaluation.settings.task}{told}, {episodes}"
    table = Table(title=title)
    for column in ("", "episodes", "MSR %", "DSR %", "SR %"):
        table.add_column(column, justify="right" if column else "left")
    _add(table, "all", summary)
    table.add_section()
    for z, part in evaluation.by_answer().items():
        _add(table, f"z = {z}", part)
    for dial, values in evaluation.by_difficulty().items():
        table.add_section()
        for value, part in values.items():
            _add(table, f"{dial.replace('_', ' ')} {value}", part)
    return table


def _add(table: Table, label: str, summary: Summary) -> None:
    rates = (summary.msr, summary.dsr, summary.sr)
    table.add_row(label, str(summary.msr.count), *(interval(rate) for rate in rates))
