"""The files of a study: everything that was found in one JSON, and a figure for each property and task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from chameleon_policy.evaluate.camo import FIRST_SEED, evaluation_seeds
from chameleon_policy.report.probes.figures import before_the_decision, edited_memories, over_time
from chameleon_policy.report.probes.table import tables
from chameleon_policy.report.probes.trajectories import trajectories
from chameleon_policy.report.provenance import write_result


def publish(findings: Sequence[Mapping[str, Any]], out: Path, json_file: Path, command: str, console: Console) -> list[Path]:
    """Print the tables, write the JSON and the figures; returns what was written."""
    for table in tables(findings):
        console.print(table)
    seeds = evaluation_seeds(FIRST_SEED, max(finding["study"]["episodes"] for finding in findings))
    write_result(json_file, {"findings": [dict(finding) for finding in findings]}, command=command, seeds=seeds)
    figures = dict(_figures(findings, out, console))
    for name, figure in figures.items():
        (out / name).write_text(figure, encoding="utf-8")
    return [json_file, *(out / name for name in figures)]


def _figures(findings: Sequence[Mapping[str, Any]], out: Path, console: Console) -> Iterator[tuple[str, str]]:
    """Name of a file -> figure."""
    first = [finding for finding in findings if finding["run"] == findings[0]["run"]]
    for finding in first:
        task = finding["task"]
        yield f"over-time-{task}.svg", over_time(finding)
        yield f"before-decision-{task}.svg", before_the_decision([each for each in findings if each["task"] == task])
        operated = [each for each in findings if each["task"] == task and each["addressability"] is not None]
        if operated:
            yield f"edited-memories-{task}.svg", edited_memories(operated)
        try:
            yield f"trajectories-{task}.svg", trajectories(out / finding["run"] / f"{task}.npz", f"{task}: h in 3-D (UMAP)")
        except ImportError as error:
            console.print(f"No trajectories: {error}", highlight=False, soft_wrap=True)
