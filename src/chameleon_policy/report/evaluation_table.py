"""An evaluation for people: one row for all episodes, one per answer, one per value of each
dial.
"""

from __future__ import annotations

import math

from rich.table import Table

from chameleon_policy.evaluate.evaluation import Evaluation
from chameleon_policy.rates import Rate
from chameleon_policy.suite import ScoreSummary


def evaluation_table(evaluation: Evaluation, name: str) -> Table:
    """Rates with their 95 % intervals in brackets: MSR, DSR and SR, or those that the task has."""
    summary = evaluation.summary
    title = f"{name} on {evaluation.settings.title}, {len(evaluation.rollouts)} episodes"
    if summary.chance is not None:
        title += f" (a guess has DSR {summary.chance:.0%})"
    table = Table(title=title)
    for column in ("", "episodes", *(f"{rate.upper()} %" for rate in summary.rates)):
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


def _add(table: Table, label: str, summary: ScoreSummary) -> None:
    table.add_row(label, str(summary.sr.count), *map(interval, summary.rates.values()))


def interval(rate: Rate) -> str:
    """A rate and its 95 % interval, in per cent."""
    if math.isnan(rate.value):
        return "-"
    return f"{percent(rate.value)} [{percent(rate.low)}, {percent(rate.high)}]"


def percent(share: float) -> int:
    """Halves go up: 185 of 200 are 93 %."""
    return math.floor(round(100 * share, 6) + 0.5)  # 100 * 0.285 is a little less than 28.5
