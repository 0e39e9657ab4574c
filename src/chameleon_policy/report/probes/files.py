"""The files of a study: everything that was found in one JSON, and beside it a figure for each
property and task.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from chameleon_policy.evaluate.evaluation import FIRST_SEED, evaluation_seeds
from chameleon_policy.provenance import write_result
from chameleon_policy.report.probes.figures import before_the_decision, edited_memories, over_time
from chameleon_policy.report.probes.table import tables
from chameleon_policy.report.probes.trajectories import trajectories


def publish(
    findings: Sequence[Mapping[str, Any]],
    out: Path,
    json_file: Path,
    command: str,
    console: Console,
) -> list[Path]:
    """Print the tables, write the JSON and the figures; returns what was written."""
    for table in tables(findings):
        console.print(table)
    seeds = evaluation_seeds(FIRST_SEED, max(finding["study"]["episodes"] for finding in findings))
    write_result(
        json_file,
        {"findings": [dict(finding) for finding in findings]},
        command=command,
        seeds=seeds,
    )
    figures = {**charts(findings), **_trajectories(findings, out, console)}
    paths = {
        json_file.with_name(f"{json_file.stem}-{name}.svg"): figure
        for name, figure in figures.items()
    }
    for path, figure in paths.items():
        path.write_text(figure, encoding="utf-8")
    return [json_file, *paths]


def charts(findings: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Name -> figure: for every task that the first run plays, it and the other runs."""
    found = {}
    for finding in _of_the_first(findings):
        task, same = finding["task"], [each for each in findings if each["task"] == finding["task"]]
        found[f"over-time-{task}"] = over_time(finding)
        found[f"before-decision-{task}"] = before_the_decision(same)
        operated = [each for each in same if each["addressability"] is not None]
        if operated:
            found[f"decoded-traces-{task}"] = edited_memories(operated, "decoded")
            found[f"attended-traces-{task}"] = edited_memories(operated, "attended")
    return found


def _trajectories(
    findings: Sequence[Mapping[str, Any]], out: Path, console: Console
) -> dict[str, str]:
    found = {}
    for finding in _of_the_first(findings):
        task = finding["task"]
        try:
            drawn = trajectories(
                out / finding["run"] / f"{task}.npz",
                f"{task}: h in three dimensions (UMAP), by answer",
            )
        except ImportError as error:
            console.print(f"No trajectories: {error}", highlight=False, soft_wrap=True)
            break
        found[f"trajectories-{task}"] = drawn
    return found


def _of_the_first(findings: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [finding for finding in findings if finding["run"] == findings[0]["run"]]
