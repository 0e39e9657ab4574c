"""A recorded dataset for readers: a table of its contents, and a contact sheet."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from PIL import Image
from rich.table import Table

from chameleon_policy.camo.contact_sheet import SheetColumn, contact_sheet
from chameleon_policy.data import RecordedDataset

ANNOTATIONS = "camo/episodes.parquet"
COMMON_COLUMNS = (
    "episode_index",
    "attempts",
    "seed",
    "z",
    "z_index",
    "length",
    "evidence_steps",
    "decision_steps",
    "manipulation",
    "decision",
    "reason",
)
"""Columns of the table of episodes that every task has; the others are its difficulty settings."""


def episode_facts(dataset: RecordedDataset) -> list[dict[str, Any]]:
    """Return the simulator's table of episodes; empty for a dataset without one."""
    path = dataset.path / ANNOTATIONS
    return pq.read_table(path).to_pylist() if path.is_file() else []


def summary_table(dataset: RecordedDataset) -> Table:
    """Return a table of size and features of a dataset.

    For Camo recordings it also has the balance over z and the spread of t_d and difficulty.
    """
    table = Table(show_header=False, title=str(dataset.path), title_justify="left")
    # All rows are read, so that a damaged file is found here and not in the middle of training.
    lengths = np.array(
        [len(next(iter(dataset.vectors(index).values()))) for index in range(len(dataset))]
    )
    size = sum(path.stat().st_size for path in dataset.path.rglob("*") if path.is_file())
    fps = dataset.schema.fps
    table.add_row(
        "episodes",
        f"{len(dataset)}, {lengths.sum():,} frames, "
        f"{lengths.sum() / fps / 60:.1f} min at {fps:g} Hz",
    )
    table.add_row(
        "length", f"{lengths.min()} to {lengths.max()} steps, median {np.median(lengths):.0f}"
    )
    for view, (height, width) in dataset.schema.views.items():
        table.add_row(f"view {view}", f"{height} x {width}")
    for key, names in dataset.schema.vectors.items():
        statistics = dataset.statistics[key]
        still = [
            name
            for name, low, high in zip(names, statistics["min"], statistics["max"], strict=True)
            if low == high
        ]
        shown = ", ".join(still[:6]) + (" ..." if len(still) > 6 else "")
        table.add_row(key, f"{len(names)} numbers" + (f"; constant: {shown}" if still else ""))
    for instruction, count in Counter(episode.instruction for episode in dataset.episodes).items():
        table.add_row("instruction", f"{instruction} ({count})")
    table.add_row("on disk", f"{size / 2**20:.1f} MiB")
    for name, text in _camo_rows(episode_facts(dataset)):
        table.add_row(name, text)
    return table


def _camo_rows(rows: list[dict[str, Any]]) -> list[tuple[str, str]]:
    if not rows:
        return []
    balance = Counter(",".join(map(str, row["z"])) for row in rows)
    counts = sorted(balance.values())
    described = (
        ", ".join(f"{z}: {count}" for z, count in sorted(balance.items()))
        if len(balance) <= 5
        else f"{len(balance)} values, {counts[0]} to {counts[-1]} episodes each"
    )
    decisions = np.array([row["decision_steps"][0] for row in rows])
    difficulties = [name for name in rows[0] if name not in COMMON_COLUMNS]
    return [
        ("z", described),
        (
            "first t_d",
            f"step {decisions.min()} to {decisions.max()}, median {np.median(decisions):.0f}",
        ),
        *(
            (name.replace("_", " "), _histogram([row[name] for row in rows]))
            for name in difficulties
        ),
        (
            "discarded",
            f"{sum(row['attempts'] - 1 for row in rows)} failed demonstrations, "
            "replaced with the same z",
        ),
        ("seeds", f"{min(row['seed'] for row in rows)} to {max(row['seed'] for row in rows)}"),
    ]


def _histogram(values: list[int]) -> str:
    return ", ".join(f"{value}: {count}" for value, count in sorted(Counter(values).items()))


def save_contact_sheet(dataset: RecordedDataset, path: Path, *, episodes: int = 6) -> bool:
    """Write an image of some episodes, one per row, with their moments from left to right.

    Returns False, and writes nothing, if the dataset has no images.
    """
    if not dataset.schema.views:
        return False
    view = next(iter(dataset.schema.views))
    facts = {row["episode_index"]: row for row in episode_facts(dataset)}
    chosen = [
        round(index) for index in np.linspace(0, len(dataset) - 1, min(episodes, len(dataset)))
    ]
    moments = {
        index: _moments(dataset.episodes[index].length, facts.get(index)) for index in chosen
    }
    frames = {index: dataset.frames(index, view) for index in chosen}
    columns = []
    for number, (heading, _) in enumerate(moments[chosen[0]]):
        columns.append(
            SheetColumn([frames[index][moments[index][number][1]] for index in chosen], heading)
        )
    names = [
        f"{index}: z {','.join(map(str, facts[index]['z']))}" if index in facts else str(index)
        for index in chosen
    ]
    sheet = contact_sheet(
        columns, f"{dataset.path.name}, view {view}", subtitle="one row per episode", rows=names
    )
    try:
        Image.fromarray(sheet).save(path)
    except OSError as error:
        raise ValueError(
            f"cannot write the contact sheet to {path}: {error.strerror or error}"
        ) from error
    return True


def _moments(length: int, facts: dict[str, Any] | None) -> list[tuple[str, int]]:
    """Return name and step of the moments to show.

    They are in the phases of the episode where these are known, else at equal distances.
    """
    if facts is None:
        return [(f"{share:.0%}", round(share * (length - 1))) for share in np.linspace(0, 1, 8)]
    evidence, decision = facts["evidence_steps"], facts["decision_steps"][0]
    shown = [("evidence", round(evidence * share)) for share in (0.25, 0.4, 0.55, 0.7)]
    shown += [
        ("retention" if evidence < decision else "decision", evidence),
        ("decision", decision),
    ]
    # In the middle of each third, because between the thirds the arm of seasonings is at rest.
    return shown + [
        ("execution", round(decision + share * (length - 1 - decision)))
        for share in (0.17, 0.5, 0.83)
    ]
