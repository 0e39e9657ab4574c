"""Measure what a policy's memory holds, and when."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import tyro

from chameleon_policy.cli.options import POLICIES, TASKS, UNSET, typed
from chameleon_policy.console import Terminal, check_writable
from chameleon_policy.device import Device
from chameleon_policy.probes.study import (
    FINDINGS,
    Study,
    StudyContext,
    earlier_findings,
    probe_runs,
)
from chameleon_policy.report.probe_figures import publish


def main(
    runs: Annotated[tyro.conf.Positional[tuple[Path, ...]], POLICIES],
    task: Annotated[tuple[str, ...], tyro.conf.UseAppendAction, TASKS] = (),
    surgery: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = (),
    study: Annotated[Study, tyro.conf.OmitArgPrefixes] = Study(),  # noqa: B008
    out: Path = FINDINGS,
    json_file: Annotated[Path | None, tyro.conf.arg(name="json"), UNSET] = None,
    found_only: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    workers: int = os.cpu_count() or 1,
    device: Device = "auto",
) -> None:
    """Measure separability, addressability and prospectiveness of trained policies' memories.

    The same command resumes an interrupted study; finished measurements are kept.

    Args:
        runs: Folders of runs or of saved policies, or camo-small: Chameleon and its ablations.
            The first is compared with the others; add a run without Control-JEPA to see its effect.
        task: clean-plate, shell-game, seasonings or pantry; give it again for another (default: all
            that a policy plays).
        surgery: Tasks in which memories are edited at the decisions, or none.
            The default is seasonings, as in the paper; or all, if the policy does not play it.
        study: Settings of the probes.
        out: Folder for demonstrations, findings and figures.
        json_file: File for all findings (default: probes.json in --out).
        found_only: Show and draw earlier findings, whatever their settings; measure nothing.
        workers: Processes that record and play episodes.
        device: Where the policies compute; auto: on a GPU if there is one.
    """
    if not runs:
        raise ValueError("name at least one run, such as: chameleon probe camo-small")
    if json_file is not None:
        check_writable("json", json_file)
    command = typed()
    if found_only:
        findings = earlier_findings(runs, task, out)
    else:
        context = StudyContext(out=out, command=command, device=device, workers=workers)
        findings = probe_runs(runs, task, surgery, study, context)
    for path in publish(findings, out, json_file or out / "probes.json", command, Terminal()):
        print(f"Written: {path}")
