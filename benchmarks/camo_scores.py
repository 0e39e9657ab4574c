"""Publishes what `chameleon reproduce` has made: the policy, its scores in one file, the tables
that quote them, the curves.

    python -m benchmarks.camo_scores runs/reproduce-camo-600 runs/reproduce-camo

The first folder is the headline, and its policy comes with the package; the others, with other
numbers of demonstrations, stand beside it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tyro

from benchmarks.tables import replaced
from chameleon_policy.camo import TASKS, task_named
from chameleon_policy.experiments.pipeline import HELD_OUT
from chameleon_policy.experiments.reproduce import RATES, SCORES, published_file
from chameleon_policy.policy.saving import CONFIG, NORMALIZER, SHIPPED, WEIGHTS
from chameleon_policy.rates import Rate
from chameleon_policy.report.evaluation_table import interval
from chameleon_policy.report.interval_chart import Point, interval_chart
from chameleon_policy.train.held_out import probe_of

PUBLISHED = published_file("camo")
ROOT = PUBLISHED.parents[2]
FOLDER = SHIPPED / "camo-small"
PAGES = (ROOT / "README.md", FOLDER / "README.md")
MARKER = "<!-- table: camo-chameleon -->"
PAPER = "| the paper, a real robot, mean of three | 120 | 86.1 | 80.8 | 71.3 |"
"""Table 1: 36 rollouts of each task."""
BESIDE = ("command", "seeds", "hardware", "software", "git_revision", "duration_s")
"""Where a track came from."""


def main(folders: tyro.conf.Positional[tuple[Path, ...]]) -> None:
    """Join the scores; write the file, the tables and the figures; copy the policy into the
    package.

    Args:
        folders: Folders of `chameleon reproduce`, the headline first.
    """
    document = joined([json.loads((folder / SCORES).read_text()) for folder in folders])
    files = {
        name: (folders[0] / "policy" / name).read_bytes() for name in (CONFIG, NORMALIZER, WEIGHTS)
    }
    result = document["result"]
    result["policy_sha256"] = hashlib.sha256(files[WEIGHTS]).hexdigest()
    # Everything is made before anything is written.
    pages = {page: with_table(page.read_text(), table(result), page) for page in PAGES}
    figures = {figure_of(track): figure(track) for track in tracks(result)}
    texts = {PUBLISHED: json.dumps(document, indent=1) + "\n", **pages, **figures}
    for name, content in files.items():
        (FOLDER / name).write_bytes(content)
    for path, text in texts.items():
        path.write_text(text)
        print(f"Written: {path}")
    print(table(result))


def joined(documents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The first document, with the results of the others and where they came from in it."""
    if not documents:
        raise ValueError("name at least one folder of `chameleon reproduce`")
    demonstrations = [each["result"]["demonstrations"] for each in documents]
    if len(set(demonstrations)) < len(documents):
        raise ValueError(f"one folder for each number of demonstrations, got {demonstrations}")
    for each in documents:
        if list(each["result"]["tasks"]) != list(TASKS):
            raise ValueError(
                f"expected scores of {', '.join(TASKS)}, got {', '.join(each['result']['tasks'])}"
            )
    first, *others = documents
    beside = {
        str(each["result"]["demonstrations"]): {
            **each["result"],
            **{name: each[name] for name in BESIDE},
        }
        for each in others
    }
    return {**first, "result": {**first["result"], "tracks": beside}}


def tracks(result: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The headline and what stands beside it."""
    return [result, *result["tracks"].values()]


def table(result: Mapping[str, Any]) -> str:
    """Markdown: a row for each task of each track, their means, and the paper's."""
    lines = [
        "| task | demonstrations | MSR % [95 %] | DSR % [95 %] | SR % [95 %] |",
        "|---|---|---|---|---|",
    ]
    for track in tracks(result):
        for task, scores in track["tasks"].items():
            rates = [interval(Rate.from_dict(scores[name])) for name in RATES]
            lines.append(f"| {task} | {track['demonstrations']} | {' | '.join(rates)} |")
        bold = " | ".join(f"**{100 * mean(track, name):.1f}**" for name in RATES)
        lines.append(f"| **mean** | {track['demonstrations']} | {bold} |")
    return "\n".join([*lines, PAPER])


def mean(track: Mapping[str, Any], name: str) -> float:
    """Over the tasks; no number where one of them has none."""
    rates = [Rate.from_dict(scores[name]).value for scores in track["tasks"].values()]
    return sum(rates) / len(rates)


def with_table(page: str, text: str, where: object = "the page") -> str:
    """Return the page with its table replaced."""
    return replaced(page, MARKER, text, where)


def figure_of(track: Mapping[str, Any]) -> Path:
    """Where the curves of a track lie."""
    return ROOT / "docs/images" / f"camo-learning-{track['demonstrations']}.svg"


def figure(track: Mapping[str, Any]) -> str:
    """How many answers a linear probe reads from the memory, over the minutes of training."""
    lines = {
        task: [_point(look, probe_of(task_named(task).instruction)) for look in track["looks"]]
        for task in track["tasks"]
    }
    return interval_chart(
        lines,
        title=f"What a probe reads from the memory, {track['demonstrations']} demonstrations",
        x_label="minutes of training on a GPU",
        levels={"a guess": 1 / 3},
    )


def _point(look: Mapping[str, float], name: str) -> Point:
    # The three answers of one episode of seasonings are not independent: episodes are counted, not
    # answers.
    rate = Rate.of(round(look[name] * HELD_OUT), HELD_OUT)
    return round(look["seconds"] / 60, 1), look[name], rate.low, rate.high


if __name__ == "__main__":
    tyro.cli(main, prog="python -m benchmarks.camo_scores")
