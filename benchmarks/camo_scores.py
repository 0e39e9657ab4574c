"""Publish the outcome of `chameleon reproduce`: the policy, its scores in one file, the curves.

    python -m benchmarks.camo_scores runs/reproduce-camo-600 runs/reproduce-camo
    make tables

The policy of the first folder is shipped with the package. The other folders, with other numbers of
demonstrations, are added to the same file as further tracks.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tyro

from benchmarks.tables.scores import camo_chameleon, tracks
from chameleon_policy.camo import task_named
from chameleon_policy.experiments.pipeline import HELD_OUT
from chameleon_policy.experiments.reproduce import SCORES, published_file
from chameleon_policy.policy.places import CONFIG, NORMALIZER, SHIPPED, WEIGHTS
from chameleon_policy.rates import Rate
from chameleon_policy.report.charts import Point, interval_chart, svg
from chameleon_policy.suite import PAPER_TASKS
from chameleon_policy.train.held_out import probe_metric

PUBLISHED = published_file("camo")
ROOT = PUBLISHED.parents[2]
FOLDER = SHIPPED / "camo-small"
BESIDE = ("command", "seeds", "hardware", "software", "git_revision", "duration_s")
"""Provenance that every track keeps."""


def main(folders: tyro.conf.Positional[tuple[Path, ...]]) -> None:
    """Write the joined scores and the figures, and copy the policy into the package.

    Args:
        folders: Folders of `chameleon reproduce`; the policy of the first one is shipped.
    """
    document = joined([json.loads((folder / SCORES).read_text()) for folder in folders])
    files = {
        name: (folders[0] / "policy" / name).read_bytes() for name in (CONFIG, NORMALIZER, WEIGHTS)
    }
    result = document["result"]
    result["policy_sha256"] = hashlib.sha256(files[WEIGHTS]).hexdigest()
    # Everything is made before anything is written.
    figures = {figure_of(track): figure(track) for track in tracks(result)}
    texts = {PUBLISHED: json.dumps(document, indent=1) + "\n", **figures}
    for name, content in files.items():
        (FOLDER / name).write_bytes(content)
    for path, text in texts.items():
        path.write_text(text)
        print(f"Written: {path}")
    print(camo_chameleon(result))


def joined(documents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the first document with the results and provenance of the others as its tracks."""
    if not documents:
        raise ValueError("name at least one folder of `chameleon reproduce`")
    demonstrations = [each["result"]["demonstrations"] for each in documents]
    if len(set(demonstrations)) < len(documents):
        raise ValueError(f"one folder for each number of demonstrations, got {demonstrations}")
    for each in documents:
        if list(each["result"]["tasks"]) != list(PAPER_TASKS):
            found = ", ".join(each["result"]["tasks"])
            raise ValueError(f"expected scores of {', '.join(PAPER_TASKS)}, got {found}")
    first, *others = documents
    beside = {
        str(each["result"]["demonstrations"]): {
            **each["result"],
            **{name: each[name] for name in BESIDE},
        }
        for each in others
    }
    return {**first, "result": {**first["result"], "tracks": beside}}


def figure_of(track: Mapping[str, Any]) -> Path:
    """Return the path of the learning curves of a track."""
    return ROOT / "docs/images" / f"camo-learning-{track['demonstrations']}.svg"


def figure(track: Mapping[str, Any]) -> str:
    """Draw the share of answers that a linear probe reads from the memory during training."""
    lines = {
        task: [_point(look, probe_metric(task_named(task).instruction)) for look in track["looks"]]
        for task in track["tasks"]
    }
    chart = interval_chart(
        lines,
        title=f"What a probe reads from the memory, {track['demonstrations']} demonstrations",
        x_label="minutes of training on a GPU",
        levels={"a guess": 1 / 3},
    )
    return svg(chart)


def _point(look: Mapping[str, float], name: str) -> Point:
    # The three answers of one episode of seasonings are not independent: episodes are counted, not
    # answers.
    rate = Rate.of(round(look[name] * HELD_OUT), HELD_OUT)
    return round(look["seconds"] / 60, 1), look[name], rate.low, rate.high


if __name__ == "__main__":
    tyro.cli(main, prog="python -m benchmarks.camo_scores")
