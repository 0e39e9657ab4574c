"""Tables for a terminal: an evaluation, a parameter budget."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from chameleon_policy.console import counted
from chameleon_policy.policy.budget import PAPER_MILLIONS, Budget
from chameleon_policy.rates import interval

if TYPE_CHECKING:  # `chameleon params` does without the simulator
    from chameleon_policy.evaluate.evaluation import Evaluation
    from chameleon_policy.suite import ScoreSummary

BUDGET_ROWS = {
    "visual": "Visual encoders",
    "memory": "Memory layers",
    "memory_ssm": "  slow and fast SSM",
    "memory_rest": "  binding, recall, consolidation",
    "head": "Rectified-flow action head",
    "projections": "Projections, null token, slots",
    "trainable": "Trainable",
}


def evaluation_table(evaluation: Evaluation, name: str) -> Table:
    """Return a table of the task's rates, such as MSR, DSR and SR, with their 95 % intervals.

    It has a row for all episodes, one for each answer, and one for each value of each difficulty.
    """
    summary = evaluation.summary
    title = f"{name} on {evaluation.settings.title}, {counted(len(evaluation.rollouts), 'episode')}"
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


def budget_table(budget: Budget, *, beside_paper: bool) -> Table:
    """Return a table with a row for each component.

    `beside_paper` adds the paper's numbers, and whether ours round to them.
    """
    table = Table(title="Parameter budget")
    table.add_column("component")
    table.add_column("parameters", justify="right")
    table.add_column("millions", justify="right")
    if beside_paper:
        table.add_column("paper", justify="right")
        table.add_column("agrees", justify="center")
    counts = asdict(budget)
    for key, label in BUDGET_ROWS.items():
        count = counts[key]
        cells: list[str | Text] = [label, f"{count:,}", f"{count / 1e6:.1f}"]
        if beside_paper:
            cells += [
                f"{PAPER_MILLIONS[key]:.1f}",
                "yes" if agrees(key, count) else Text("no", style="red"),
            ]
        if key == "trainable":
            table.add_section()
        table.add_row(*cells, style="bold" if key == "trainable" else None)
    return table


def agrees(key: str, count: int) -> bool:
    """Return whether the count, rounded to the paper's one decimal, is the paper's number."""
    return f"{count / 1e6:.1f}" == f"{PAPER_MILLIONS[key]:.1f}"
