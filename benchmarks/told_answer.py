"""Draw the success of policies that are given the answer, by minutes of training.

    chameleon train DATA... --recipe camo --tell-answer --no-mirror --minutes 4 \\
        --checkpoint-minutes 0.65 --out runs/told
    chameleon eval COPY --task TASK --first-seed 1500000000 --json evaluations/1.7/TASK.json
    python -m benchmarks.told_answer runs/told/run.json evaluations

They show whether, and when, a policy can act. Every checkpoint overwrites runs/told/policy: copy it
in time, and evaluate each copy on each task. A folder of evaluations is named after the minutes of
training of its policy.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tyro

from benchmarks import with_arguments
from benchmarks.camo_scores import ROOT
from chameleon_policy.experiments.reproduce import RATES
from chameleon_policy.provenance import write_result
from chameleon_policy.rates import Rate, interval
from chameleon_policy.report.charts import interval_chart, point_of, svg
from chameleon_policy.report.paper import PAPER_TASKS
from chameleon_policy.train.metrics import METRICS, read_metrics

COMMAND = "python -m benchmarks.told_answer"
RESULT = ROOT / "docs/results/camo-told.json"
FIGURE = ROOT / "docs/images/camo-told.svg"


def main(training: tyro.conf.Positional[Path], evaluations: tyro.conf.Positional[Path]) -> None:
    """Join the scores, draw them over the minutes, print them.

    Args:
        training: run.json of the training, beside its metrics.jsonl.
        evaluations: Folder that holds a folder for each policy.
    """
    documents = {minutes: read(folder) for minutes, folder in folders(evaluations).items()}
    seeds = {
        seed
        for tasks in documents.values()
        for document in tasks.values()
        for seed in document["seeds"]
    }
    minutes = {
        minutes: {task: _kept(document) for task, document in tasks.items()}
        for minutes, tasks in documents.items()
    }
    lines = read_metrics(training.with_name(METRICS))
    if not lines:
        raise FileNotFoundError(
            f"{training.with_name(METRICS)} is missing or empty: "
            "name the run.json of a finished training"
        )
    trained = {name: lines[-1][name] for name in ("step", "seconds")}
    result = {"training": json.loads(training.read_text()), "trained": trained, "minutes": minutes}
    drawn = figure(minutes)
    write_result(RESULT, result, command=with_arguments(COMMAND), seeds=sorted(seeds))
    FIGURE.write_text(drawn)
    for name, tasks in minutes.items():
        rows = (
            f"{task} {' '.join(interval(Rate.from_dict(row[rate])) for rate in RATES)}"
            for task, row in tasks.items()
        )
        print(f"{name} min, MSR DSR SR: {'; '.join(rows)}")
    print(f"Written: {RESULT}, {FIGURE}")


def folders(evaluations: Path) -> dict[str, Path]:
    """Return the folders of evaluations by minutes of training, in that order."""
    found = {path.name: path for path in evaluations.iterdir() if path.is_dir()}
    strange = [name for name in found if not name.replace(".", "", 1).isdecimal()]
    if strange or not found:
        got = " ".join(sorted(strange)) or "none"
        raise ValueError(
            f"{evaluations} must hold folders that are named after minutes of training, "
            f"such as 1.7; got {got}"
        )
    return {name: found[name] for name in sorted(found, key=float)}


def read(folder: Path) -> dict[str, dict[str, Any]]:
    """Read the evaluations of one policy, by task."""
    documents = {}
    for task in PAPER_TASKS:
        path = folder / f"{task}.json"
        if not path.is_file():
            raise FileNotFoundError(
                f"{path} is missing: chameleon eval COPY --task {task} --json {path}"
            )
        documents[task] = json.loads(path.read_text())
        environment = documents[task]["result"]["environment"]
        if environment["task"] != task or environment["kind"] != "told":
            raise ValueError(
                f"{path} is no evaluation of {task} with a policy that is told the answer "
                "(train --tell-answer)"
            )
    return documents


def figure(minutes: Mapping[str, Mapping[str, Any]]) -> str:
    """Draw SR of each task over the minutes of training."""
    lines = {
        task: [
            point_of(float(name), Rate.from_dict(tasks[task]["sr"]))
            for name, tasks in minutes.items()
        ]
        for task in PAPER_TASKS
    }
    return svg(
        interval_chart(
            lines,
            title="Told the answer: SR during training",
            x_label="minutes of training on a shared GPU",
        )
    )


def _kept(document: Mapping[str, Any]) -> dict[str, Any]:
    result, origin = (
        document["result"],
        {name: document[name] for name in ("hardware", "git_revision", "duration_s")},
    )
    return {
        **origin,
        "euler_steps": result["steps"],
        **{name: result[name] for name in ("episodes", *RATES, "reasons")},
    }


if __name__ == "__main__":
    tyro.cli(main, prog=COMMAND)
