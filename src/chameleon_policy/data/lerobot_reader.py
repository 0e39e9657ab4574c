"""Reading LeRobot v3.0 datasets, a whole episode at a time: the fast way to read video."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image, UnidentifiedImageError

from chameleon_policy.data.schema import (
    CODEBASE_VERSION,
    IMAGE_PREFIX,
    INFO_PATH,
    STATS_PATH,
    Schema,
)
from chameleon_policy.data.video import decode_video

_LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)


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


class RecordedDataset:
    """A LeRobot v3.0 dataset in a folder; several threads may read it at once.

    >>> dataset = RecordedDataset(Path("datasets/camo"))                            # doctest: +SKIP
    >>> dataset.vectors(0)["action"].shape, dataset.frames(0, "third").shape        # doctest: +SKIP
    ((66, 10), (66, 128, 128, 3))
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        if not self.path.is_dir():
            raise FileNotFoundError(
                f"expected the folder of a LeRobot {CODEBASE_VERSION} dataset, but {path} is not a "
                "directory"
            )
        info_path = self.path / INFO_PATH
        if not info_path.is_file():
            raise FileNotFoundError(
                f"{self.path} has no {INFO_PATH}, which is written last: the recording is "
                "incomplete (or this is no LeRobot dataset); run the record command again, it "
                "continues where it stopped"
            )
        try:
            self.info: dict[str, Any] = json.loads(info_path.read_text(encoding="utf-8"))
        except json.JSONDecodeError as error:
            raise ValueError(
                f"{info_path} is damaged: {error}; record or copy the dataset again"
            ) from error
        version = self.info.get("codebase_version")
        if version != CODEBASE_VERSION:
            raise ValueError(
                f"{self.path} has codebase_version {version!r}, expected {CODEBASE_VERSION!r}; "
                "lerobot has converters: python -m "
                "lerobot.datasets.v30.convert_dataset_v21_to_v30 --repo-id=..."
            )
        missing = {
            "features",
            "fps",
            "total_episodes",
            "total_frames",
            "data_path",
        } - self.info.keys()
        if missing:
            raise ValueError(
                f"{info_path} is damaged: it lacks {', '.join(sorted(missing))}; record or copy "
                "the dataset again"
            )
        self.schema = Schema.from_info(self.info)
        self.episodes = self._read_episodes()
        self._cached: dict[tuple[str, ...], tuple[Path, pa.Table]] = {}
        """Columns -> the file that was last read for them, and its table."""
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_lock"} | {
            "_cached": {}
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())

    def __len__(self) -> int:
        return len(self.episodes)

    def __repr__(self) -> str:
        frames = self.info["total_frames"]
        size = f"{len(self)} episodes, {frames} frames at {self.schema.fps:g} Hz"
        return f"RecordedDataset({str(self.path)!r}: {size})"

    @cached_property
    def statistics(self) -> dict[str, dict[str, np.ndarray]]:
        """Feature -> name (min, max, mean, std, count, q01, ...) -> array, from meta/stats.json."""
        path = self._existing(self.path / STATS_PATH, "the statistics")
        content = json.loads(path.read_text(encoding="utf-8"))
        return {
            key: {name: np.array(value) for name, value in values.items()}
            for key, values in content.items()
        }

    def vectors(self, episode: int, keys: Collection[str] | None = None) -> dict[str, np.ndarray]:
        """Return some vectors of an episode, or all of them: feature -> (T, d) float32."""
        for key in keys or ():
            if key not in self.schema.vectors:
                raise ValueError(
                    f"{self.path} has no vector {key!r}; available: "
                    f"{', '.join(self.schema.vectors) or 'none'}"
                )
        rows = self._rows(episode, tuple(self.schema.vectors))
        chosen = self.schema.vectors if keys is None else keys
        return {key: self._numbers(rows[key], episode, key) for key in chosen}

    def frames(self, episode: int, view: str) -> np.ndarray:
        """Return the frames of a view, (T, H, W, 3) uint8."""
        found = self._episode(episode)
        if view not in self.schema.views:
            raise ValueError(
                f"{self.path} has no view {view!r}; available: "
                f"{', '.join(self.schema.views) or 'none'}"
            )
        key = self.view_key(view)
        if self.info["features"][key]["dtype"] == "image":
            pictures = self._rows(episode, (key,))[key].to_pylist()
            return np.stack(
                [self._picture(stored, episode, key, step) for step, stored in enumerate(pictures)]
            )
        path = self._existing(self.file_of(episode, key), f"{key} of episode {episode}")
        rate = self.schema.rate
        try:
            return decode_video(
                path, rate, round(found.row[f"videos/{key}/from_timestamp"] * rate), found.length
            )
        except ValueError as error:
            raise ValueError(f"{key} of episode {episode} cannot be read: {error}") from error

    def view_key(self, view: str) -> str:
        """Return the feature that holds the frames of a view."""
        return view if view in self.info["features"] else IMAGE_PREFIX + view

    def file_of(self, episode: int, key: str) -> Path:
        """Return the path of the file that holds a feature of an episode, even if it is missing."""
        in_video = self.info["features"][key]["dtype"] == "video"
        template, prefix = ("video_path", f"videos/{key}") if in_video else ("data_path", "data")
        row = self._episode(episode).row
        indices = {name: row.get(f"{prefix}/{name}") for name in ("chunk_index", "file_index")}
        if None in indices.values() or not self.info.get(template):
            raise ValueError(
                f"{self.path}: meta/episodes and {INFO_PATH} do not say in which file {key} of "
                f"episode {episode} lies; copy the dataset again, or leave that feature out"
            )
        return self.path / str(self.info[template]).format(video_key=key, **indices)

    def _episode(self, index: int) -> EpisodeInfo:
        if not 0 <= index < len(self.episodes):
            raise IndexError(
                f"{self.path} has the episodes 0 to {len(self.episodes) - 1}, got {index}"
            )
        return self.episodes[index]

    def _existing(self, path: Path, content: str) -> Path:
        if not path.is_file():
            raise FileNotFoundError(
                f"{path} is missing; it holds {content}. Run the record command again, or copy the "
                "dataset again"
            )
        return path

    def _read_episodes(self) -> list[EpisodeInfo]:
        if self.info["total_episodes"] == 0:
            return []
        content = "the list of episodes"
        self._existing(self.path / "meta/episodes/chunk-000/file-000.parquet", content)
        rows: list[dict[str, Any]] = []
        for path in sorted(self.path.glob("meta/episodes/*/*.parquet")):
            rows += _read_table(path, content).to_pylist()
        rows.sort(key=lambda row: row["episode_index"])
        if [row["episode_index"] for row in rows] != list(range(self.info["total_episodes"])):
            raise ValueError(
                f"{self.path}: {INFO_PATH} says {self.info['total_episodes']} episodes, "
                f"meta/episodes lists {len(rows)}; run the record command again"
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

    def _rows(self, episode: int, columns: tuple[str, ...]) -> pa.Table:
        """Return an episode's rows of the data table."""
        found = self._episode(episode)
        path = self.file_of(episode, columns[0]) if columns else self.file_of(episode, "index")
        with self._lock:
            last, table = self._cached.get(columns, (None, None))
            if last != path:
                content = ", ".join(columns)
                table = _read_table(
                    self._existing(path, content), content, [*columns, "index", "episode_index"]
                )
                self._cached[columns] = path, table
        assert table is not None
        if "dataset_from_index" not in found.row:
            raise ValueError(
                f"{self.path}: meta/episodes lacks the column dataset_from_index; copy the dataset "
                "again"
            )
        first = int(np.searchsorted(table["index"].to_numpy(), found.row["dataset_from_index"]))
        rows = table.slice(first, found.length)
        if len(rows) != found.length or set(rows["episode_index"].to_pylist()) != {episode}:
            raise ValueError(
                f"{path}: expected {found.length} rows of episode {episode} from row {first} on, "
                f"got {len(rows)} rows of episodes "
                f"{sorted(set(rows['episode_index'].to_pylist()))}; the file is damaged"
            )
        return rows

    def _numbers(self, column: pa.ChunkedArray, episode: int, key: str) -> np.ndarray:
        """Return a column of numbers, or of lists of equal length, as (T, d) float32."""
        flat = column.combine_chunks()
        while any(is_list(flat.type) for is_list in _LISTS):
            flat = flat.flatten()
        size = len(self.schema.vectors[key])
        if len(flat) != len(column) * size:
            raise ValueError(
                f"{self.file_of(episode, key)}, episode {episode}, {key}: expected {size} numbers "
                f"in each of {len(column)} rows, as {INFO_PATH} says, got {len(flat)} in all; "
                "record or copy the dataset again"
            )
        # Numbers beyond float32 become infinite here; `Episodes` refuses them.
        with np.errstate(over="ignore"):
            return np.asarray(flat).astype(np.float32).reshape(len(column), size)

    def _picture(
        self, stored: Mapping[str, Any] | None, episode: int, key: str, step: int
    ) -> np.ndarray:
        """Decode a picture that is stored in the data table as a PNG or JPEG file."""
        where = f"{self.file_of(episode, key)}, episode {episode}, {key}, time step {step}"
        content = (stored or {}).get("bytes")
        if content is None:
            raise ValueError(
                f"{where}: expected the bytes of a picture, got {stored}; copy the dataset again"
            )
        try:
            picture = Image.open(io.BytesIO(content))
            if picture.mode not in ("RGB", "RGBA", "L", "P"):
                raise ValueError(
                    f"{where}: expected a colour picture, got one in pillow's mode {picture.mode!r}"
                )
            return np.asarray(picture.convert("RGB"))
        # pillow raises a SyntaxError for a broken PNG
        except (UnidentifiedImageError, OSError, SyntaxError) as error:
            raise ValueError(
                f"{where}: the picture is damaged ({error}); copy the dataset again"
            ) from error


def _read_table(path: Path, content: str, columns: list[str] | None = None) -> pa.Table:
    """Read some columns of a parquet file, or all columns except statistics."""
    try:
        present = pq.read_schema(path).names
        if columns is None:
            columns = [name for name in present if not name.startswith("stats/")]
        missing = [name for name in columns if name not in present]
        if missing:
            raise ValueError(
                f"{path} has no column {', '.join(missing)}, which {INFO_PATH} announces; "
                f"available: {', '.join(present)}"
            )
        # without partitioning=None, folders such as chunk-000 would become columns
        return pq.read_table(path, columns=columns, partitioning=None)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(
            f"{path} is damaged ({error}); it holds {content}. Record or copy the dataset again"
        ) from error
