"""Write a page on trained policies: scores, learning curves, clips, the memory theatre."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import tyro

from chameleon_policy.cli.options import POLICIES, TASKS, UNSET, needs, typed
from chameleon_policy.device import Device
from chameleon_policy.probes.study import FINDINGS, StudyContext
from chameleon_policy.report.run_report import Report, report_runs


def main(
    runs: Annotated[tyro.conf.Positional[tuple[Path, ...]], POLICIES],
    task: Annotated[tuple[str, ...], tyro.conf.UseAppendAction, TASKS] = (),
    out: Path = Path("runs/report"),
    config: Annotated[Report, tyro.conf.OmitArgPrefixes] = Report(),  # noqa: B008
    rerun: Annotated[Path | None, UNSET] = None,
    probes: Path = FINDINGS,
    workers: int = os.cpu_count() or 1,
    device: Device = "auto",
) -> None:
    """Write one page on trained policies: scores, learning curves, clips, and the memory theatre.

    Args:
        runs: Folders of runs or of saved policies, or camo-small: Chameleon and its ablations.
        task: clean-plate, shell-game, seasonings or pantry; give it again for another (default: all
            that a policy plays).
        out: Folder for the page, its scores and demonstrations.
        config: How much the page shows.
        rerun: File (.rrd) for the theatre's episodes as a Rerun recording, which needs the extra
            rerun (default: none is written).
        probes: Folder in which chameleon probe keeps its findings on these runs, for their figures.
        workers: Processes that record and play.
        device: Where the policies compute; auto: on a GPU if there is one.
    """
    if rerun is not None:
        with needs("rerun"):
            from chameleon_policy.report.theatre.rerun_recording import (
                check_recording,
                save_recording,
            )
        check_recording(rerun)
    if not runs:
        raise ValueError("name at least one run, such as: chameleon report camo-small")
    context = StudyContext(out=out, command=typed(), device=device, workers=workers)
    page, episodes = report_runs(runs, task, config, context, probes=probes)
    if rerun is not None:
        save_recording(episodes, rerun)
        print(f"Open it in Rerun: rerun {rerun}")
    print(f"Open it in a browser: {page.resolve().as_uri()}")
