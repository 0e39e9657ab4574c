"""Measure how long, and through how much, a policy remembers: scores against the dials of a task.

    python -m benchmarks.delay_study camo-small --task shell-game --longer-retention 20 \\
        --out delay-shell-game.json

Every point is a set of held-out episodes of its own difficulty. A figure for each dial is drawn
next to the JSON file, with the range that the policy was trained on.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import tyro

from benchmarks import with_arguments
from chameleon_policy.camo import task_named
from chameleon_policy.evaluate.evaluation import FIRST_SEED, evaluate, evaluation_seeds
from chameleon_policy.evaluate.loading import (
    EXPERTS,
    load_for_evaluation,
    sampling_steps_of,
    training_of,
)
from chameleon_policy.provenance import write_result
from chameleon_policy.rates import Rate, interval
from chameleon_policy.report.charts import interval_chart, point_of, svg

COMMAND = "python -m benchmarks.delay_study"
RETENTION = (3, 10, 30, 100, 300)
SWAPS = (0, 1, 2, 3, 4, 5, 6)
TRAINED = {"retention_steps": (3, 10), "swaps": (1, 2)}
"""Ranges of the benchmark's demonstrations."""
LABELS = {
    "retention_steps": "control steps between evidence and decision",
    "swaps": "swaps of cups",
}


def main(
    run: tyro.conf.Positional[Path],
    task: Literal["clean-plate", "shell-game", "seasonings"],
    out: Path,
    episodes: int = 100,
    retention: tuple[int, ...] = RETENTION,
    swaps: tuple[int, ...] = SWAPS,
    longer_retention: int | None = None,
    steps: int | None = None,
    workers: int = 2,
    device: Literal["auto", "cpu", "cuda"] = "auto",
) -> None:
    """Measure, print, draw, and write the result.

    Args:
        run: Folder of a run or of a saved policy.
        task: Task that it was trained on.
        out: JSON file to write; the figures are written next to it.
        episodes: Held-out episodes for every point.
        retention: Steps between evidence and decision to try.
        swaps: Numbers of swaps to try (shell-game).
        longer_retention: Steps that the training added to the benchmark's retention (default: what
            the run says).
        steps: Euler steps of a chunk (default: the policy's own: 50, or 8 for camo-small).
        workers: Processes for the environments.
        device: Where the policy computes.
    """
    seeds = evaluation_seeds(FIRST_SEED, episodes)
    points: list[tuple[str, int]] = [("retention_steps", value) for value in retention]
    if task == "shell-game":
        points += [("swaps", value) for value in swaps]
    ranges = trained_ranges(run, longer_retention)
    result: dict[str, Any] = {
        "task": task,
        "policy": str(run),
        "training": training_of(run),
        "episodes": episodes,
        "trained_on": ranges,
    }
    for dial, value in points:
        dials: dict[str, Any] = (
            {dial: (value, value)} if dial == "retention_steps" else {"difficulty": {dial: value}}
        )
        policy, settings = load_for_evaluation(run, task, device, **dials)
        summary = evaluate(policy, settings, seeds, steps=steps, workers=workers).summary
        print(f"{dial} {value}: DSR {interval(summary.dsr)}, SR {interval(summary.sr)}", flush=True)
        result["euler_steps"] = steps or sampling_steps_of(policy)
        result.setdefault(dial, {})[str(value)] = {
            "environment": settings.as_dict(),
            **summary.as_dict(),
        }
        # After every point, so that a study that is cut off leaves what it has.
        write_result(out, result, command=with_arguments(COMMAND), seeds=seeds)
    for dial in ranges:
        if dial in result:
            path = out.with_name(f"{out.stem}-{dial.replace('_', '-')}.svg")
            path.write_text(figure(task, dial, result[dial], ranges[dial]))
            print(f"Figure: {path}")


def trained_ranges(run: Path, longer_retention: int | None) -> dict[str, tuple[int, int]]:
    """Return the range of each dial in the training of a policy.

    `longer_retention` takes precedence over the number of steps in the files of the run.
    """
    if longer_retention is None:
        training = training_of(run)
        if training is None and str(run) not in EXPERTS:
            raise ValueError(
                f"{run} does not say what it was trained on: give --longer-retention "
                "(0, if nothing was added)"
            )
        longer_retention = training["training"].get("longer_retention", 0) if training else 0
    shortest, longest = TRAINED["retention_steps"]
    return {**TRAINED, "retention_steps": (shortest, longest + longer_retention)}


def figure(task: str, dial: str, rows: dict[str, Any], trained: tuple[int, int]) -> str:
    """Draw DSR and SR over one dial; `trained` is the range trained on."""
    lines = {
        name.upper(): [
            point_of(float(value), Rate.from_dict(row[name]))
            for value, row in rows.items()
            if row[name]["count"]
        ]
        for name in ("dsr", "sr")
    }
    chart = interval_chart(
        lines,
        title=f"{task}: remembering against {dial.replace('_', ' ')}",
        x_label=LABELS[dial],
        logarithmic=dial == "retention_steps" and "0" not in rows,
        levels={"a guess": task_named(task)().chance},
        trained_on=trained,
    )
    return svg(chart)


if __name__ == "__main__":
    tyro.cli(main, prog=COMMAND)
