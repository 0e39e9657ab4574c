"""Compare methods, trained and scored alike, and draw the table."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import tyro

from chameleon_policy.cli.options import UNSET, typed
from chameleon_policy.device import Device
from chameleon_policy.experiments.bench.jobs import Bench
from chameleon_policy.experiments.bench.rows import Results
from chameleon_policy.experiments.bench.schedule import run_bench
from chameleon_policy.experiments.pipeline import Workspace
from chameleon_policy.report.comparison.rendering import draw_tables


def main(
    config: Annotated[Bench, tyro.conf.OmitArgPrefixes],
    side_by_side: int = 2,
    workers: int = os.cpu_count() or 1,
    device: Device = "auto",
    out: Annotated[Path | None, UNSET] = None,
    results: Annotated[Path | None, UNSET] = None,
    table_only: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
) -> None:
    """Train and score every method alike, several at a time, and draw the table.

    The same command continues a bench that was stopped.

    Args:
        config: Methods, tasks, seeds, and how each policy is trained and scored.
        side_by_side: Training jobs at the same time.
        workers: Processes that record and evaluate.
        device: Where to train and to evaluate; auto: on a GPU if there is one.
        out: Folder for demonstrations and runs; what is there already is kept (default:
            runs/bench-camo).
        results: File for the scores, a row for each policy and task, next to which the tables
            (.md, .tex, .html) are written (default: docs/results/camo-table.json).
        table_only: Draw the tables from the results that are there, and run nothing.
    """
    rows = Results(results or Path(f"docs/results/{config.suite}-table.json"))
    folder = out or Path("runs") / f"bench-{config.suite}"
    workspace = Workspace(out=folder, command=typed(), device=device, workers=workers)
    if table_only:
        draw_tables(rows.path, rows.rows, workspace.console, config.suite)
        return
    try:
        run_bench(config, workspace, rows, side_by_side)
    finally:  # draw the rows so far, even if something failed
        if rows.rows:
            draw_tables(rows.path, rows.rows, workspace.console, config.suite)
