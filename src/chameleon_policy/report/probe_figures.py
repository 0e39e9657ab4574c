"""The charts of what probes found, and the files that `chameleon probe` writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib.figure import Figure
from rich.console import Console

from chameleon_policy.camo import task_named
from chameleon_policy.evaluate.evaluation import FIRST_SEED, evaluation_seeds
from chameleon_policy.probes.addressability import PAPER_EDITS, paper_edits
from chameleon_policy.probes.theatre import candidate_names
from chameleon_policy.provenance import write_result
from chameleon_policy.rates import Rate
from chameleon_policy.report import paper
from chameleon_policy.report.charts import Point, interval_chart, rate_bars, svg, trajectory_chart
from chameleon_policy.report.probe_tables import Finding, tables
from chameleon_policy.writing import whole_file

NEIGHBOURS = 30
"""Neighbours of a point in UMAP."""
BEFORE = 24
"""Control steps up to the first decision that trajectories show: the last of the evidence, and the
wait.
"""


def publish(
    findings: Sequence[Finding], out: Path, json_file: Path, command: str, console: Console
) -> list[Path]:
    """Print the tables, write the JSON and the charts next to it; return the paths written.

    `out` is the folder that has the working states of each run, for its trajectories.
    """
    for table in tables(findings):
        console.print(table)
    seeds = evaluation_seeds(FIRST_SEED, max(finding["study"]["episodes"] for finding in findings))
    write_result(
        json_file,
        {"findings": [dict(finding) for finding in findings]},
        command=command,
        seeds=seeds,
    )
    written = [json_file]
    for name, figure in {**charts(findings), **_trajectories(findings, out, console)}.items():
        path = json_file.with_name(f"{json_file.stem}-{name}.svg")
        with whole_file(path) as unfinished:
            unfinished.write_text(svg(figure), encoding="utf-8")
        written.append(path)
    return written


def charts(findings: Sequence[Finding]) -> dict[str, Figure]:
    """Return name -> chart, for every task that the first run plays."""
    found = {}
    for finding in _of_first_run(findings):
        task, same = finding["task"], [each for each in findings if each["task"] == finding["task"]]
        found[f"over-time-{task}"] = over_time(finding)
        found[f"before-decision-{task}"] = before_decision(same)
        edited = [each for each in same if each["addressability"] is not None]
        if edited:
            found[f"decoded-traces-{task}"] = edited_memories(edited, "decoded")
            found[f"attended-traces-{task}"] = edited_memories(edited, "attended")
    return found


def over_time(finding: Finding) -> Figure:
    """Draw how well each part of the answer is read from h, through the episode."""
    found = finding["separability"]["over_time"]
    names = {"answer": "answer", "first": "first seasoning", "second": "second", "third": "third"}
    return interval_chart(
        {names[name]: _points(line) for name, line in found.items()},
        title=f"{finding['task']}: what can be read from h",
        x_label="control steps, first decision at 0",
        levels={"chance": finding["prospectiveness"]["chance"]},
        ticks=range(-60, 21, 20),
        bands=True,
    )


def before_decision(findings: Sequence[Finding]) -> Figure:
    """Draw how well the next choice is read, over time relative to its decision.

    It is read from h of all runs, and from the traces of the first.
    """
    first = findings[0]["prospectiveness"]
    names = _names(findings)
    lines = {
        f"h, {name}": _points(each["prospectiveness"]["working"])
        for name, each in zip(names, findings, strict=True)
    }
    lines[f"traces, {names[0]}"] = _points(first["traces"])
    return interval_chart(
        lines,
        title=f"{findings[0]['task']}: the next choice, read before it is due",
        x_label="control steps, decision at 0",
        ticks=range(-40, 11, 10),
        bands=True,
        levels={"chance": first["chance"], f"{first['threshold']:.0%}": first["threshold"]},
    )


def edited_memories(findings: Sequence[Finding], rule: Literal["decoded", "attended"]) -> Figure:
    """Draw the paper's four interventions as bars, and the paper's numbers as marks."""
    rates = {}
    for name, finding in zip(_names(findings), findings, strict=True):
        rows = {row["name"]: row for row in finding["addressability"]["rows"]}
        rates[name] = [Rate.from_dict(rows[edit]["follows"]) for edit in paper_edits(rule)]
    published = [paper.ADDRESSABILITY[name] / 100 for name in PAPER_EDITS]
    return rate_bars(
        PAPER_EDITS,
        rates,
        title=f"{findings[0]['task']}: choices after edits of {rule} traces",
        marks=("the paper, seasonings", published),
    )


def embed(file: Path) -> tuple[np.ndarray, np.ndarray]:
    """Embed h before the first decision of every episode in three dimensions with UMAP.

    Returns the points (N, BEFORE, 3) and the answers (N).
    """
    try:
        from umap import UMAP
    except ModuleNotFoundError as error:
        raise ImportError(
            "trajectories need umap-learn: pip install 'chameleon-policy[probes]'"
        ) from error

    with np.load(file) as saved:
        working, lengths, decisions, answers = (
            saved[name] for name in ("working", "lengths", "decisions", "answers")
        )
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    inside = decisions >= BEFORE
    rows = (starts + decisions)[inside, None] + np.arange(-BEFORE, 0)
    points = working[rows].astype(np.float32)
    flat = points.reshape(-1, points.shape[-1])
    flat = (flat - flat.mean(0)) / flat.std(0).clip(min=1e-6)
    mapped = UMAP(
        n_components=3, n_neighbors=min(NEIGHBOURS, len(flat) - 1), random_state=0, n_jobs=1
    ).fit_transform(flat)
    return mapped.reshape(*points.shape[:2], 3), answers[inside, 0]


def trajectories(points: np.ndarray, answers: np.ndarray, task: str) -> Figure:
    """Draw embedded working states (N, BEFORE, 3); a dot is one step before the decision."""
    return trajectory_chart(
        points,
        answers.tolist(),
        candidate_names(len(task_named(task)().candidates)),
        title=f"{task}: h in three dimensions (UMAP), by answer",
        note=f"{len(points)} episodes, the last {BEFORE} steps before the first decision",
    )


def _trajectories(findings: Sequence[Finding], out: Path, console: Console) -> dict[str, Figure]:
    found = {}
    for finding in _of_first_run(findings):
        task = finding["task"]
        try:
            embedded = embed(out / finding["run"] / f"{task}.npz")
        except ImportError as error:
            console.print(f"No trajectories: {error}", highlight=False, soft_wrap=True)
            break
        found[f"trajectories-{task}"] = trajectories(*embedded, task)
    return found


def _of_first_run(findings: Sequence[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding["run"] == findings[0]["run"]]


def _names(findings: Sequence[Finding]) -> list[str]:
    """Return the methods of the findings, or the names of their runs where methods are equal."""
    methods = [finding["method"] for finding in findings]
    return (
        methods if len(set(methods)) == len(methods) else [finding["run"] for finding in findings]
    )


def _points(line: Sequence[Mapping[str, Any]]) -> list[Point]:
    return [(point["step"], point["value"], point["low"], point["high"]) for point in line]
