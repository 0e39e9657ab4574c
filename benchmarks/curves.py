"""Draw scores against a dial, method by method: how much, through how much, and for how long.

    python -m benchmarks.curves cups runs/bench-camo/*seed? --out docs/results/capacity.json
    python -m benchmarks.curves swaps runs/... --out docs/results/swaps.json
    python -m benchmarks.curves retention runs/... --task pantry --out docs/results/retention.json

cups       pantry with 3 to 8 cups and one question
swaps      shell-game with 0 to 8 swaps
retention  3 to 1,000 control steps between evidence and decision, in any task

Every point is a set of held-out episodes of its own difficulty, the same for all policies. Rows
that the file has already are kept, so that a study goes on where it was cut off. The figure, with
the episodes of all training seeds together, is drawn next to the JSON file.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro

from benchmarks import with_arguments
from chameleon_policy.evaluate.evaluation import FIRST_SEED, evaluate, evaluation_seeds
from chameleon_policy.evaluate.loading import load_for_evaluation, training_of
from chameleon_policy.provenance import git_revision, write_rows
from chameleon_policy.rates import Rate, interval
from chameleon_policy.report.charts import interval_chart, point_of, svg
from chameleon_policy.report.paper import NAMES

COMMAND = "python -m benchmarks.curves"


@dataclass(frozen=True)
class Dial:
    """A dial of a task."""

    task: str
    name: str
    values: tuple[int, ...]
    label: str
    difficulty: dict[str, int]
    """Other dials, the same at every point."""

    def options(self, value: int) -> dict[str, Any]:
        """Return the environment's options at a value of the dial."""
        if self.name == "retention":
            return {"retention_steps": (value, value), "difficulty": self.difficulty}
        return {"difficulty": {**self.difficulty, self.name: value}}


DIALS = {
    "cups": Dial("pantry", "cups", tuple(range(3, 9)), "cups", {"questions": 1}),
    "swaps": Dial("shell-game", "swaps", tuple(range(9)), "swaps of cups", {}),
    "retention": Dial(
        "shell-game",
        "retention",
        (3, 10, 30, 100, 300, 1000),
        "control steps between evidence and decision",
        {},
    ),
}


def main(
    dial: tyro.conf.Positional[Literal["cups", "swaps", "retention"]],
    runs: tyro.conf.Positional[tuple[Path, ...]],
    out: Path,
    task: str | None = None,
    values: tuple[int, ...] | None = None,
    trained_on: tuple[int, int] | None = None,
    episodes: int = 100,
    steps: int | None = None,
    workers: int = 2,
    device: Literal["auto", "cpu", "cuda"] = "auto",
) -> None:
    """Play, print, write, draw.

    Args:
        dial: What to vary.
        runs: Folders of trainings.
        out: JSON file to write; the figure is written next to it.
        task: Task to play (default: the one in which the dial means most).
        values: Values to try (default: the benchmark's).
        trained_on: Range of the dial in training, to shade in the figure.
        episodes: Held-out episodes for every point.
        steps: Euler steps of a chunk (default: the policy's own).
        workers: Processes for the environments.
        device: Where the policy computes.
    """
    chosen = DIALS[dial]
    task, seeds = task or chosen.task, evaluation_seeds(FIRST_SEED, episodes)
    rows: list[dict[str, Any]] = json.loads(out.read_text())["rows"] if out.is_file() else []
    for run in runs:
        training = training_of(run)
        if training is None:
            raise SystemExit(f"{run} is no training; give folders that chameleon train has made")
        for value in values or chosen.values:
            identity = {
                "method": training["method"],
                "seed": training["training"]["seed"],
                "task": task,
                dial: value,
                "episodes": episodes,
                "run": run.name,
            }
            if any(identity.items() <= row.items() for row in rows):
                continue
            policy, settings = load_for_evaluation(run, task, device, **chosen.options(value))
            summary = evaluate(policy, settings, seeds, steps=steps, workers=workers).summary
            rows.append({**identity, **summary.as_dict(), "git_revision": git_revision()})
            write_rows(out, rows, with_arguments(COMMAND), seeds)
            shown = f"DSR {interval(summary.dsr)}, SR {interval(summary.sr)}"
            print(f"{run.name}, {dial} {value}: {shown}", flush=True)
    path = out.with_suffix(".svg")
    path.write_text(figure(dial, task, rows, trained_on))
    print(f"{len(rows)} rows in {out}; figure: {path}")


def figure(
    dial: str, task: str, rows: list[dict[str, Any]], trained_on: tuple[int, int] | None = None
) -> str:
    """Draw the DSR of every method, over the episodes of all its trainings, and that of a guess."""
    found = [row for row in rows if row["task"] == task]
    values = sorted({row[dial] for row in found})
    lines: dict[str, list[tuple[float, float, float, float]]] = {}
    for method in dict.fromkeys(row["method"] for row in found):
        points = []
        for value in values:
            rates = [
                Rate.from_dict(row["dsr"])
                for row in found
                if (row["method"], row[dial]) == (method, value) and row["dsr"]["count"]
            ]
            right = round(sum(rate.value * rate.count for rate in rates))
            if rates:
                pooled = Rate.of(right, sum(rate.count for rate in rates))
                points.append(point_of(float(value), pooled))
        lines[NAMES.get(method, method)] = points
    chances = {row[dial]: row["chance"] for row in found}
    lines["a guess"] = [(float(value), *[chances[value]] * 3) for value in values]
    chart = interval_chart(
        lines,
        title=f"{task}: right decisions against {dial}",
        x_label=DIALS[dial].label,
        logarithmic=dial == "retention" and min(values) > 0,
        trained_on=trained_on,
    )
    return svg(chart)


if __name__ == "__main__":
    tyro.cli(main, prog=COMMAND)
