"""Metadata of LeRobot v3.0 datasets: meta/info.json and meta/episodes, checked before use."""

from __future__ import annotations

import math
import re
import reprlib
import string
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chameleon_policy.data.foreign_files import (
    LARGEST_SIDE,
    LARGEST_VECTOR,
    MOST_EPISODES,
    inside,
    read_json,
)
from chameleon_policy.data.schema import CODEBASE_VERSION, INFO_PATH
from chameleon_policy.data.tables import column_names, read_table, row_count

EPISODE_LIST = "meta/episodes"
_WIDTH = re.compile(r"0?[0-9]?d?")
_USED = re.compile(r"episode_index|length|tasks|dataset_from_index|(data|videos)/.*")
"""Columns of meta/episodes; the others are statistics."""


@dataclass(frozen=True, kw_only=True)
class EpisodeInfo:
    """The metadata of one episode in a dataset."""

    index: int
    length: int
    instruction: str
    row: Mapping[str, Any]
    """The episode's row of meta/episodes, without statistics: its files, and the position in
    each.
    """


def read_info(root: Path) -> dict[str, Any]:
    """Return the content of meta/info.json, whose values have the right types and sane sizes."""
    path = inside(root, INFO_PATH, INFO_PATH)
    if not path.is_file():
        # suites write this file when they begin to record
        unfinished = any(root.glob("*/recording.json"))
        raise FileNotFoundError(
            f"{root} has no {INFO_PATH}, "
            + (
                "which is written last: the recording is incomplete; run the record command "
                "again, it continues where it stopped"
                if unfinished
                else "so that it is no LeRobot dataset, or an incomplete one; copy the dataset "
                "again"
            )
        )
    info = read_json(path)
    version = info.get("codebase_version")
    if version != CODEBASE_VERSION:
        raise ValueError(
            f"{root} has codebase_version {reprlib.repr(version)}, expected "
            f"{CODEBASE_VERSION!r}; lerobot has converters: python -m "
            "lerobot.datasets.v30.convert_dataset_v21_to_v30 --repo-id=..."
        )
    fps: Any = info.get("fps")
    # videos are read at a ratio of small numbers
    _check(path, "fps", fps, is_number(fps) and 0.01 <= fps <= 10_000, "0.01 to 10,000 per second")
    for key in ("total_episodes", "total_frames"):
        _check(path, key, info.get(key), is_count(info.get(key)), "a whole number, at least 0")
    total = info["total_episodes"]
    _check(path, "total_episodes", total, total <= MOST_EPISODES, f"at most {MOST_EPISODES:,}")
    _check(path, "data_path", info.get("data_path"), isinstance(info.get("data_path"), str), "text")
    for key in ("video_path", "robot_type"):
        _check(path, key, info.get(key), isinstance(info.get(key), str | None), "text or null")
    features = info.get("features")
    _check(path, "features", features, isinstance(features, dict), "features by their names")
    for key, feature in info["features"].items():
        _check_feature(path, key, feature)
    return info


def is_count(value: object) -> bool:
    """Return whether a value is a whole number that is not negative and fits into 63 bits."""
    return type(value) is int and 0 <= value < 2**63


def is_number(value: object) -> bool:
    """Return whether a value is a finite number."""
    return type(value) in (int, float) and math.isfinite(value)  # type: ignore[arg-type]


def _check(path: Path, key: str, value: object, holds: bool, expected: str) -> None:
    if not holds:
        raise ValueError(
            f"{path}, {key}: expected {expected}, got {reprlib.repr(value)}; copy the dataset again"
        )


def _check_feature(path: Path, key: str, feature: Any) -> None:
    where = f"features, {key}"
    _check(path, where, feature, isinstance(feature, dict), "its dtype and shape")
    dtype, shape = feature.get("dtype"), feature.get("shape")
    _check(path, f"{where}, dtype", dtype, isinstance(dtype, str), "text")
    sizes = isinstance(shape, list) and all(is_count(size) for size in shape)
    _check(path, f"{where}, shape", shape, sizes, "a list of whole numbers")
    if dtype in ("video", "image"):
        sides, least = f"sides of 1 to {LARGEST_SIDE:,} pixels", 1
        fits = all(least <= size <= LARGEST_SIDE for size in shape)
        _check(path, f"{where}, shape", shape, fits, sides)
    elif len(shape) == 1:
        fits = shape[0] <= LARGEST_VECTOR
        _check(path, f"{where}, shape", shape, fits, f"at most {LARGEST_VECTOR:,} numbers")


def read_episodes(root: Path, info: Mapping[str, Any]) -> list[EpisodeInfo]:
    """Return the episodes that meta/episodes lists, in their order."""
    total, content = info["total_episodes"], "the list of episodes"
    if total == 0:
        return []
    existing(root, f"{EPISODE_LIST}/chunk-000/file-000.parquet", content)
    paths = [
        existing(root, str(path.relative_to(root)), content)
        for path in sorted(root.glob(f"{EPISODE_LIST}/*/*.parquet"))
    ]
    counts = sum(row_count(path, content) for path in paths)
    rows: list[dict[str, Any]] = []
    if counts == total:
        for path in paths:
            used = [name for name in column_names(path, content) if _USED.fullmatch(name)]
            rows += read_table(path, content, used).to_pylist()
    if rows:
        _check_rows(root, rows)
        rows.sort(key=lambda row: row["episode_index"])
    if [row["episode_index"] for row in rows] != list(range(total)):
        raise ValueError(
            f"{root}: {INFO_PATH} says {total} episodes, {EPISODE_LIST} lists {counts}, or not "
            "each of them once; copy the dataset again"
        )
    frames = sum(row["length"] for row in rows)
    if frames > info["total_frames"]:
        raise ValueError(
            f"{root / EPISODE_LIST}: the episodes' lengths are {frames:,} frames together, and "
            f"{INFO_PATH} announces {info['total_frames']:,}; copy the dataset again"
        )
    return [
        EpisodeInfo(
            index=row["episode_index"],
            length=row["length"],
            instruction=(row["tasks"] or [""])[0],
            row=row,
        )
        for row in rows
    ]


def _check_rows(root: Path, rows: list[dict[str, Any]]) -> None:
    """Check the columns that every dataset has, and those that say where its files lie."""
    path = root / EPISODE_LIST
    missing = {"episode_index", "length", "tasks", "dataset_from_index"} - rows[0].keys()
    if missing:
        raise ValueError(
            f"{path} has no column {', '.join(sorted(missing))}; available: {', '.join(rows[0])}. "
            "Copy the dataset again"
        )
    for row in rows:
        for name, value in row.items():
            where = f"episode {reprlib.repr(row['episode_index'])}, {name}"
            if name.endswith(("/chunk_index", "/file_index")):
                fits = value is None or is_count(value)
                _check(path, where, value, fits, "a whole number, at least 0")
            elif name in ("episode_index", "length", "dataset_from_index"):
                _check(path, where, value, is_count(value), "a whole number, at least 0")
            elif name.endswith("/from_timestamp"):
                fits = is_number(value) and 0 <= value < 10**7
                _check(path, where, value, value is None or fits, "seconds, at least 0")
            elif name == "tasks":
                texts = isinstance(value, list) and all(isinstance(text, str) for text in value)
                _check(path, where, value, value is None or texts, "a list of texts")


def file_name(root: Path, template: str, key: str, fields: Mapping[str, Any]) -> Path:
    """Return the path that a template of meta/info.json makes of these fields.

    The fields are inserted here, since str.format would follow attributes and any width.

    Args:
        root: Folder of the dataset.
        template: Such as data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet.
        key: Its key in meta/info.json, for messages.
        fields: Values of the fields that it may name.
    """
    pieces = []
    try:
        parsed = list(string.Formatter().parse(template))
    except ValueError as error:
        raise ValueError(
            f"{root / INFO_PATH}, {key}: {reprlib.repr(template)} is no template ({error}); copy "
            "the dataset again"
        ) from error
    for text, name, width, conversion in parsed:
        pieces.append(text)
        if name is None:
            continue
        value = fields.get(name)
        number = isinstance(value, int) and _WIDTH.fullmatch(width or "")
        if value is None or conversion or not (number or not width):
            raise ValueError(
                f"{root / INFO_PATH}, {key}: expected fields such as {{chunk_index:03d}}, out of "
                f"{', '.join(fields)}, got {reprlib.repr(template)}; copy the dataset again"
            )
        pieces.append(format(value, width or ""))
    return inside(root, "".join(pieces), f"{INFO_PATH}, {key},")


def existing(root: Path, name: str, content: str) -> Path:
    """Return the path of a file of the dataset, or raise a FileNotFoundError."""
    path = inside(root, name, name)
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing; it holds {content}. Copy the dataset again")
    return path
