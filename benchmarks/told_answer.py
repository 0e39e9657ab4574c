"""Can the hands do it, and from when on? Policies that are told the answer, saved at several moments of a training.

    chameleon train DATA... --recipe camo --tell-answer --no-mirror --minutes 4 --out runs/told
    chameleon eval POLICY --task TASK --first-seed 1500000000 --json evaluations/1.7/TASK.json   # each policy, each task
    python -m benchmarks.told_answer runs/told/run.json evaluations

A folder is named after the minutes of training behind its policy.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tyro

from benchmarks.camo_scores import ROOT
from benchmarks.delay_study import point
from chameleon_policy.camo import TASKS
from chameleon_policy.camo.scoring import Rate
from chameleon_policy.report.evaluation_table import interval
from chameleon_policy.report.interval_chart import interval_chart
from chameleon_policy.report.provenance import write_result
from chameleon_policy.reproduce import RATES

COMMAND = "python -m benchmarks.told_answer"
RESULT = ROOT / "docs/results/camo-told.json"
FIGURE = ROOT / "docs/images/camo-told.svg"


def main(training: tyro.conf.Positional[Path], evaluations: tyro.conf.Positional[Path]) -> None:
    """Join the scores, draw them over the minutes, print the last ones.

    Args:
        training: run.json of the training.
        evaluations: Folder that holds a folder for each policy.
    """
    result: dict[str, Any] = {"training": json.loads(training.read_text()), "minutes": {}}
    seeds: set[int] = set()
    for folder in sorted(evaluations.iterdir(), key=lambda path: float(path.name)):
        documents = {task: json.loads((folder / f"{task}.json").read_text()) for task in TASKS}
        seeds.update(seed for document in documents.values() for seed in document["seeds"])
        result["minutes"][folder.name] = {
            task: kept(document, f"{folder / task}.json") for task, document in documents.items()
        }
    FIGURE.write_text(figure(result["minutes"]))
    write_result(RESULT, result, command=shlex.join([*COMMAND.split(), *sys.argv[1:]]), seeds=sorted(seeds))
    for minutes, tasks in result["minutes"].items():
        rows = (f"{task} {' '.join(interval(Rate.from_dict(row[name])) for name in RATES)}" for task, row in tasks.items())
        print(f"{minutes} min, MSR DSR SR: {'; '.join(rows)}")
    print(f"Written: {RESULT}, {FIGURE}")


def kept(document: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Of an evaluation of a policy that is told the answer."""
    if document["result"]["environment"]["kind"] != "told":
        raise ValueError(f"{where} is of a policy that was not told the answer: train it with --tell-answer")
    return {name: document["result"][name] for name in ("episodes", *RATES, "reasons")}


def figure(minutes: Mapping[str, Mapping[str, Any]]) -> str:
    """SR of each task over the minutes of training."""
    lines = {task: [point(name, tasks[task]["sr"]) for name, tasks in minutes.items()] for task in TASKS}
    return interval_chart(lines, title="Told the answer: SR during training", x_label="minutes of training on a GPU")


if __name__ == "__main__":
    tyro.cli(main, prog=COMMAND)
