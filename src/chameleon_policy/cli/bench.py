"""Compare methods, trained and scored alike, and draw the table."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console

from chameleon_policy.cli.options import typed
from chameleon_policy.console import progress_bar
from chameleon_policy.device import Device
from chameleon_policy.experiments.bench.plan import Bench
from chameleon_policy.experiments.bench.rows import Results
from chameleon_policy.experiments.bench.run import Workshop, run_bench
from chameleon_policy.report.comparison.rendering import draw_tables


def main(
    benchmark: tyro.conf.Positional[Literal["camo"]],
    config: Annotated[Bench, tyro.conf.OmitArgPrefixes],
    side_by_side: int = Workshop.side_by_side,
    workers: int = os.cpu_count() or 1,
    device: Device = "auto",
    out: Path = Path("runs/bench-camo"),
    results: Path = Path("docs/results/camo-table.json"),
    table_only: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
) -> None:
    """Train and score every method alike, several at a time, and draw the table.

    The same command goes on with a bench that was stopped.

    Args:
        benchmark: What to compare on.
        config: Methods, tasks, seeds, and how each policy is trained and scored.
        side_by_side: Trainings at the same time.
        workers: Processes that record and evaluate.
        device: Where to train and to play (default: a GPU if there is one).
        out: Folder for demonstrations and runs; what is there already is kept.
        results: File for the scores, a row for each policy and task. The tables (.md, .tex, .html)
            lie beside it.
        table_only: Draw the tables from the results that are there, and run nothing.
    """
    file, console = Results(results), Console()
    if table_only:
        draw_tables(results, file.rows, console)
        return
    workshop = Workshop(
        out=out,
        results=file,
        command=typed(),
        device=device,
        side_by_side=side_by_side,
        workers=workers,
    )
    try:
        run_bench(config, workshop, progress_bar, console)
    finally:  # draw what is there, whatever became of the rest
        if file.rows:
            draw_tables(results, file.rows, console)
