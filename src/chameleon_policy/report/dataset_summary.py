"""A recorded dataset for readers: a table of its contents, and a contact sheet."""

from __future__ import annotations

import os
import reprlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image
from rich.table import Table

from chameleon_policy.camo.contact_sheet import SheetColumn, contact_sheet
from chameleon_policy.data import RecordedDataset
from chameleon_policy.data.foreign_files import inside
from chameleon_policy.data.lerobot_episodes import CAMO_TABLE
from chameleon_policy.data.tables import column_names, read_table, row_count

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


OUTLIER = 100.0
"""Distance of an outlier from all values but the most extreme ones, in widths of their range."""


def episode_facts(dataset: RecordedDataset) -> list[dict[str, Any]]:
    """Return the simulator's table of episodes; empty for a dataset without one."""
    path = inside(dataset.path, CAMO_TABLE, CAMO_TABLE)
    if not path.is_file():
        return []
    content = "what the simulator knows about each episode"
    names = column_names(path, content)
    missing = [name for name in COMMON_COLUMNS if name not in names]
    if missing or row_count(path, content) != len(dataset):
        raise ValueError(
            f"{path}: expected a row for each of {len(dataset)} episodes, with {COMMON_COLUMNS}; "
            f"it has {row_count(path, content)}, and lacks {missing}; copy the dataset again"
        )
    rows: list[dict[str, Any]] = read_table(path, content, names).to_pylist()
    for index, row in enumerate(rows):
        length = dataset.episodes[index].length
        counts = [row[name] for name in ("episode_index", "attempts", "seed", "evidence_steps")]
        lists = [row[name] for name in ("z", "decision_steps")]
        whole = all(isinstance(values, list) and values for values in lists)
        numbers = [*counts, *(number for values in lists for number in values)] if whole else [None]
        if (
            any(type(number) is not int for number in numbers)
            or row["episode_index"] != index
            or not all(0 <= step < length for step in row["decision_steps"])
            or not 0 <= row["evidence_steps"] < length
        ):
            raise ValueError(
                f"{path}, row {index}: expected the seed, z and time steps of an episode of "
                f"{length} steps, got {reprlib.repr(row)}; copy the dataset again"
            )
    return rows


def summarise(dataset: RecordedDataset) -> tuple[Table, list[str]]:
    """Return a table of size and features of a dataset, and why training would refuse it.

    For Camo recordings the table also has the balance over z and the spread of t_d and difficulty.
    """
    if not len(dataset):
        raise ValueError(f"{dataset.path} holds no episodes; expected at least one")
    table = Table(show_header=False, title=str(dataset.path), title_justify="left")
    # All rows are read, so that a damaged file is found here and not in the middle of training.
    episodes = [dataset.vectors(index) for index in range(len(dataset))]
    lengths = np.array([episode.length for episode in dataset.episodes])
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
    refusals = []
    for view, (height, width) in dataset.schema.views.items():
        table.add_row(f"view {view}", f"{height} x {width}")
        refusals += _refused_pictures(dataset, view)
    for key, names in dataset.schema.vectors.items():
        rows = np.concatenate([episode[key] for episode in episodes])
        low, high = rows.min(axis=0, initial=np.inf), rows.max(axis=0, initial=-np.inf)
        still = [name for name, first, last in zip(names, low, high, strict=True) if first == last]
        shown = ", ".join(still[:6]) + (" ..." if len(still) > 6 else "")
        table.add_row(key, f"{len(names)} numbers" + (f"; constant: {shown}" if still else ""))
        where = _Places(key, names, lengths)
        refusals += _not_finite(rows, where)
        for sentence in _outliers(rows, where):
            table.add_row("outlier", sentence)
    for refusal in refusals:
        table.add_row("refused", refusal)
    for instruction, count in Counter(episode.instruction for episode in dataset.episodes).items():
        table.add_row("instruction", f"{instruction} ({count})")
    table.add_row("on disk", f"{size / 2**20:.1f} MiB")
    for name, text in _camo_rows(episode_facts(dataset)):
        table.add_row(name, text)
    return table, refusals


def _refused_pictures(dataset: RecordedDataset, view: str) -> list[str]:
    try:
        dataset.check_sizes(view)
    except ValueError as error:
        return [str(error)]
    return []


@dataclass(frozen=True)
class _Places:
    """Where a row of all episodes' rows of a feature lies, in words."""

    key: str
    names: Sequence[str]
    lengths: npt.NDArray[np.int64]

    def of(self, row: int, column: int) -> str:
        """Return the name of a number, its episode and its time step."""
        ends = np.cumsum(self.lengths)
        episode = int(np.searchsorted(ends, row, side="right"))
        step = row - (ends[episode] - self.lengths[episode])
        return f"{self.key}, {self.names[column]}, episode {episode}, time step {step}"


def _not_finite(rows: npt.NDArray[np.float32], where: _Places) -> list[str]:
    wrong = np.argwhere(~np.isfinite(rows))
    if not len(wrong):
        return []
    row, column = wrong[0]
    count = f", the first of {len(wrong)} numbers that are not finite" if len(wrong) > 1 else ""
    return [f"{where.of(row, column)}: {rows[row, column]}{count}"]


def _outliers(rows: npt.NDArray[np.float32], where: _Places) -> list[str]:
    """Describe the numbers that leave nothing of the others when they are normalised."""
    found = []
    for column, values in enumerate(rows.T.astype(float)):
        known = np.sort(values[np.isfinite(values)])
        few = max(1, len(known) // 1000)
        if len(known) <= 2 * few:
            continue
        low, high = known[few], known[-few - 1]
        distance = np.where(np.isfinite(values), np.maximum(low - values, values - high), 0)
        far = int(distance.argmax())
        if distance[far] > OUTLIER * (high - low) > 0:
            found.append(
                f"{where.of(far, column)}: {values[far]:g}, where most lie between {low:g} and "
                f"{high:g}"
            )
    return found


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
    difficulties = [
        name
        for name in rows[0]
        if name not in COMMON_COLUMNS and all(type(row[name]) is int for row in rows)
    ]
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
    _save(sheet, path)
    return True


def _save(sheet: npt.NDArray[np.uint8], path: Path) -> None:
    """Write an image beside its place and rename it, so that no link is followed."""
    kind = path.suffix.lower()
    if kind not in (".png", ".jpg", ".jpeg"):
        raise ValueError(f"--out must be the name of a .png or .jpg file, got {path}")
    unfinished = path.with_name(f".{path.name}.unfinished-{os.getpid()}")
    try:
        try:
            with unfinished.open("xb") as file:
                Image.fromarray(sheet).save(file, "PNG" if kind == ".png" else "JPEG")
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)
    except OSError as error:
        raise ValueError(
            f"cannot write the contact sheet to {path}: {error.strerror or error}; choose another "
            "--out"
        ) from error


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
