"""The table that `chameleon run` prints: delays, and ticks in which something was missing."""

from __future__ import annotations

from typing import Any

from rich.table import Table

ROWS = {
    "lateness_ms": "tick begins after it is due",
    "observe_ms": "observation until the memory has it",
    "chunk_ms": "observation until its chunk is there",
    "end_to_end_ms": "observation until the first action from it",
}


def loop_table(loop: dict[str, Any], title: str) -> Table:
    """Return a table of the counts and delays of `summarise_timings`."""
    table = Table(title=title)
    for column in ("milliseconds", "median", "p99", "longest"):
        table.add_column(column, justify="left" if column == "milliseconds" else "right")
    for name, words in ROWS.items():
        delays = loop[name]
        cells = (
            [f"{delays[part]:.1f}" for part in ("p50", "p99", "max")]
            if delays["count"]
            else ["-"] * 3
        )
        table.add_row(words, *cells)
    table.caption = (
        f"{loop['ticks']} ticks: {loop['missed_memory']} not in the memory, "
        f"{loop['missed_periods']} periods without one, {loop['idle']} without a plan, "
        f"{loop['limited']} actions changed by the limits"
    )
    return table
