"""Commands that look inside policies: probe, report."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from chameleon_policy.cli.shared import Where, extra, typed
from chameleon_policy.console import progress_bar


def probe(
    runs: tyro.conf.Positional[tuple[Path, ...]],
    task: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = (),
    surgery: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = (),
    fitted: int = 120,
    asked: int = 60,
    episodes: int = 36,
    steps: int = 8,
    out: Path = Path("runs/probes"),
    json_file: Annotated[Path | None, tyro.conf.arg(name="json")] = None,
    found_only: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    workers: int = os.cpu_count() or 1,
    device: Where = "auto",
) -> None:
    """Look into the memory of trained policies: separability, addressability, prospectiveness, beside the paper's figures.

    The same command goes on where it was; what was found before is not measured again.

    Args:
        runs: Folders of runs or of saved policies, or camo-small: Chameleon and its ablations. The first is compared with
            the others: give one that was trained without Control-JEPA to see what that is worth.
        task: clean-plate, shell-game or seasonings; give it again for another (default: all that a policy plays).
        surgery: Tasks in which memories are edited at the decisions, or none (default: seasonings, as in the paper; or all,
            for a policy that does not play it).
        fitted: Demonstrations of each task that the linear probes are fitted to.
        asked: Other demonstrations that they are asked about.
        episodes: Held-out episodes that are played, and played again with every edit.
        steps: Euler steps of a chunk.
        out: Folder for demonstrations, findings and figures.
        json_file: File for everything that was found (default: probes.json in --out).
        found_only: Show and draw what was found before, whatever its settings were, and measure nothing.
        workers: Processes that record and play.
        device: Where the policies compute (default: a GPU if there is one).
    """
    with extra("camo,train"):
        from chameleon_policy.probes.study import Place, Study, found_before, probe_runs
        from chameleon_policy.report.probes.files import publish

    if not runs:
        raise ValueError("name at least one run: chameleon probe runs/plate, or chameleon probe camo-small")
    command = typed()
    study = Study(fitted=fitted, asked=asked, episodes=episodes, steps=steps)
    place = Place(out=out, command=command, device=device, workers=workers)
    findings = found_before(runs, task, out) if found_only else probe_runs(runs, task, surgery, study, place, progress_bar)
    for path in publish(findings, out, json_file or out / "probes.json", command, Console()):
        print(f"Written: {path}")


def report(
    runs: tyro.conf.Positional[tuple[Path, ...]],
    task: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = (),
    out: Path = Path("runs/report"),
    episodes: int = 12,
    shown: int = 2,
    fitted: int = 48,
    steps: int = 8,
    rerun: Path | None = None,
    probes: Path = Path("runs/probes"),
    workers: int = os.cpu_count() or 1,
    device: Where = "auto",
) -> None:
    """One page on trained policies: scores, learning curves, clips, and the memory theatre, where you watch them remember.

    Args:
        runs: Folders of runs or of saved policies, or camo-small: Chameleon and its ablations.
        task: clean-plate, shell-game or seasonings; give it again for another (default: all that a policy plays).
        out: Folder for the page, its scores and demonstrations.
        episodes: Held-out episodes of each task.
        shown: Of them in the theatre: a success, a failure if there is one, then others.
        fitted: Demonstrations of each task that the probes of beliefs are fitted to.
        steps: Euler steps of a chunk.
        rerun: File (.rrd) for the theatre's episodes as a Rerun recording; needs the extra rerun.
        probes: Folder in which chameleon probe keeps what it found of these runs; its figures come on the page.
        workers: Processes that record and play.
        device: Where the policies compute (default: a GPU if there is one).
    """
    with extra("camo,train"):
        from chameleon_policy.report.runs import Report, report_runs
    if rerun is not None:
        with extra("rerun"):
            from chameleon_policy.report.theatre.rerun_recording import check_recording, save_recording

        check_recording(rerun)
    if not runs:
        raise ValueError("name at least one run: chameleon report runs/plate, or chameleon report camo-small")
    config = Report(episodes=episodes, shown=shown, fitted=fitted, steps=steps)
    command = typed()
    page, theatre = report_runs(
        runs, task, config, out, progress_bar, command, probes=probes, device=device, workers=workers
    )
    if rerun is not None:
        save_recording(theatre, rerun)
        print(f"Look at it in Rerun: rerun {rerun}")
    print(f"Look at it in a browser: {page.resolve().as_uri()}")
