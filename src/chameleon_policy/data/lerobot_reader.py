"""Reads LeRobot v3.0 datasets, whole episodes at a time: the fast way to read video."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from chameleon_policy.data.schema import CODEBASE_VERSION, IMAGE_PREFIX, INFO_PATH, STATS_PATH, Schema
from chameleon_policy.data.video import decode_video


@dataclass(frozen=True, kw_only=True)
class Episode:
    """What a dataset says of one of its episodes."""

    index: int
    length: int
    instruction: str
    row: Mapping[str, Any]
    """The episode's row of meta/episodes, less the statistics: in which files it lies, and where."""


class RecordedDataset:
    """A LeRobot v3.0 dataset in a folder.

    >>> dataset = RecordedDataset(Path("datasets/camo"))                            # doctest: +SKIP
    >>> dataset.vectors(0)["action"].shape, dataset.frames(0, "third").shape        # doctest: +SKIP
    ((66, 10), (66, 128, 128, 3))
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        if not self.path.is_dir():
            raise FileNotFoundError(
                f"expected the folder of a LeRobot {CODEBASE_VERSION} dataset, but {path} is not a directory"
            )
        info_path = self.path / INFO_PATH
        if not info_path.is_file():
            raise FileNotFoundError(
                f"{self.path} has no {INFO_PATH}, which is written last: the recording is incomplete (or this is no LeRobot "
                "dataset); run the record command again, it continues where it stopped"
            )
        try:
            self.info: dict[str, Any] = json.loads(info_path.read_text(encoding="utf-8"))
        except json.JSONDecodeError as error:
            raise ValueError(f"{info_path} is damaged: {error}; record or copy the dataset again") from error
        version = self.info.get("codebase_version")
        if version != CODEBASE_VERSION:
            raise ValueError(
                f"{self.path} has codebase_version {version!r}, expected {CODEBASE_VERSION!r}; lerobot has converters: "
                "python -m lerobot.datasets.v30.convert_dataset_v21_to_v30 --repo-id=..."
            )
        missing = {"features", "fps", "total_episodes", "total_frames", "data_path"} - self.info.keys()
        if missing:
            raise ValueError(
                f"{info_path} is damaged: it lacks {', '.join(sorted(missing))}; record or copy the dataset again"
            )
        self.schema = Schema.from_info(self.info)
        self.episodes = self._read_episodes()
        self._cached: tuple[str, pa.Table] | None = None

    def __len__(self) -> int:
        return len(self.episodes)

    def __repr__(self) -> str:
        frames = self.info["total_frames"]
        return f"RecordedDataset({str(self.path)!r}: {len(self)} episodes, {frames} frames at {self.schema.fps:g} Hz)"

    @cached_property
    def statistics(self) -> dict[str, dict[str, np.ndarray]]:
        """Feature -> name (min, max, mean, std, count, q01, ...) -> array, from meta/stats.json."""
        path = self._existing(STATS_PATH, "the statistics")
        content = json.loads(path.read_text(encoding="utf-8"))
        return {key: {name: np.array(value) for name, value in values.items()} for key, values in content.items()}

    def vectors(self, episode: int) -> dict[str, np.ndarray]:
        """Feature -> (T, d) float32, for every vector of the dataset."""
        found = self._episode(episode)
        path = self.info["data_path"].format(
            chunk_index=found.row["data/chunk_index"], file_index=found.row["data/file_index"]
        )
        if self._cached is None or self._cached[0] != path:
            self._cached = (path, self._read_table(path))
        table = self._cached[1]
        first = int(np.searchsorted(table["index"].to_numpy(), found.row["dataset_from_index"]))
        rows = table.slice(first, found.length)
        if len(rows) != found.length or set(rows["episode_index"].to_pylist()) != {episode}:
            raise ValueError(
                f"{self.path / path}: expected {found.length} rows of episode {episode} from row {first} on, "
                f"got {len(rows)} rows of episodes {sorted(set(rows['episode_index'].to_pylist()))}; the file is damaged"
            )
        return {key: _array(rows[key]) for key in self.schema.vectors}

    def frames(self, episode: int, view: str) -> np.ndarray:
        """Frames of a view, (T, H, W, 3) uint8."""
        found = self._episode(episode)
        if view not in self.schema.views:
            raise ValueError(f"{self.path} has no view {view!r}; available: {', '.join(self.schema.views) or 'none'}")
        key = view if view in self.info["features"] else IMAGE_PREFIX + view
        place = {name: found.row[f"videos/{key}/{name}"] for name in ("chunk_index", "file_index")}
        path = self._existing(self.info["video_path"].format(video_key=key, **place), f"{key} of episode {episode}")
        rate = self.schema.rate
        return decode_video(path, rate, round(found.row[f"videos/{key}/from_timestamp"] * rate), found.length)

    def _episode(self, index: int) -> Episode:
        if not 0 <= index < len(self.episodes):
            raise IndexError(f"{self.path} has the episodes 0 to {len(self.episodes) - 1}, got {index}")
        return self.episodes[index]

    def _existing(self, path: str, what: str) -> Path:
        if not (self.path / path).is_file():
            raise FileNotFoundError(
                f"{self.path / path} is missing; it holds {what}. Run the record command again, or copy the dataset again"
            )
        return self.path / path

    def _read_episodes(self) -> list[Episode]:
        self._existing("meta/episodes/chunk-000/file-000.parquet", "the list of episodes")
        rows: list[dict[str, Any]] = []
        for path in sorted(self.path.glob("meta/episodes/*/*.parquet")):
            columns = [name for name in pq.read_schema(path).names if not name.startswith("stats/")]
            # `partitioning=None`: folders such as chunk-000 are no partitions of the table.
            rows += pq.read_table(path, columns=columns, partitioning=None).to_pylist()
        rows.sort(key=lambda row: row["episode_index"])
        if [row["episode_index"] for row in rows] != list(range(self.info["total_episodes"])):
            raise ValueError(
                f"{self.path}: {INFO_PATH} says {self.info['total_episodes']} episodes, meta/episodes lists {len(rows)}; "
                "run the record command again"
            )
        return [
            Episode(index=row["episode_index"], length=row["length"], instruction=row["tasks"][0], row=row) for row in rows
        ]

    def _read_table(self, path: str) -> pa.Table:
        what = ", ".join(self.schema.vectors)
        columns = [*self.schema.vectors, "index", "episode_index"]
        found = self._existing(path, what)
        try:
            return pq.read_table(found, columns=columns, partitioning=None)
        except (pa.ArrowInvalid, OSError) as error:
            raise ValueError(f"{found} is damaged ({error}); it holds {what}. Record or copy the dataset again") from error


def _array(column: pa.ChunkedArray) -> np.ndarray:
    """A column of numbers or of lists of one length, as (T, d) float32."""
    length = len(column)
    flat = column.combine_chunks()
    while not pa.types.is_floating(flat.type):
        flat = flat.flatten()
    return np.asarray(flat, dtype=np.float32).reshape(length, -1)
