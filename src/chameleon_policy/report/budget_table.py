"""The parameter budget beside the paper's, as a table."""

from __future__ import annotations

from dataclasses import asdict

from rich.table import Table

from chameleon_policy.policy.budget import PAPER_MILLIONS, Budget

ROWS = {
    "visual": "Visual encoders",
    "memory": "Memory layers",
    "memory_ssm": "  slow and fast SSM",
    "memory_rest": "  binding, recall, consolidation",
    "head": "Rectified-flow action head",
    "projections": "Projections, null token, slots",
    "trainable": "Trainable",
}


def budget_table(budget: Budget, *, beside_paper: bool) -> Table:
    """One row per component; `beside_paper` adds the paper's figure and whether ours rounds to
    it.
    """
    table = Table(title="Parameter budget")
    table.add_column("component")
    table.add_column("parameters", justify="right")
    table.add_column("millions", justify="right")
    if beside_paper:
        table.add_column("paper", justify="right")
        table.add_column("agrees", justify="center")
    counts = asdict(budget)
    for key, label in ROWS.items():
        count = counts[key]
        cells = [label, f"{count:,}", f"{count / 1e6:.1f}"]
        if beside_paper:
            cells += [
                f"{PAPER_MILLIONS[key]:.1f}",
                "yes" if agrees(key, count) else "[red]no[/red]",
            ]
        if key == "trainable":
            table.add_section()
        table.add_row(*cells, style="bold" if key == "trainable" else None)
    return table


def agrees(key: str, count: int) -> bool:
    """Whether the count, rounded to the paper's one decimal, is the paper's figure."""
    return f"{count / 1e6:.1f}" == f"{PAPER_MILLIONS[key]:.1f}"
