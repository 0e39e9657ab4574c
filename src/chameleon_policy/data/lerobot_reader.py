"""Reading LeRobot v3.0 datasets, a whole episode at a time: the fast way to read video."""

from __future__ import annotations

import io
import reprlib
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image

from chameleon_policy.data.foreign_files import read_json
from chameleon_policy.data.lerobot_metadata import (
    EpisodeInfo,
    existing,
    file_name,
    read_episodes,
    read_info,
)
from chameleon_policy.data.memory import check_memory
from chameleon_policy.data.schema import (
    CODEBASE_VERSION,
    IMAGE_PREFIX,
    INFO_PATH,
    STATS_PATH,
    Schema,
)
from chameleon_policy.data.tables import read_table, row_count, vectors, whole_numbers
from chameleon_policy.data.video import check_video, decode_video


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
        self.info: dict[str, Any] = read_info(self.path)
        self.schema = Schema.from_info(self.info)
        self.episodes = read_episodes(self.path, self.info)
        self._row_counts: dict[Path, int] = {}
        self._files: dict[tuple[Any, ...], Path] = {}
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
        path = existing(self.path, STATS_PATH, "the statistics")
        try:
            return {
                key: {name: np.array(value, dtype=np.float64) for name, value in values.items()}
                for key, values in read_json(path).items()
            }
        except (TypeError, ValueError, AttributeError) as error:
            raise ValueError(
                f"{path}: expected lists of numbers for each feature ({error}); copy the dataset "
                "again"
            ) from error

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
        return {
            key: vectors(
                rows[key],
                len(self.schema.vectors[key]),
                f"{self.file_of(episode, key)}, episode {episode}, {key}",
            )
            for key in chosen
        }

    def frames(self, episode: int, view: str) -> np.ndarray:
        """Return the frames of a view, (T, H, W, 3) uint8."""
        return np.stack(list(self.each_frame(episode, view)))

    def each_frame(self, episode: int, view: str) -> Iterator[np.ndarray]:
        """Yield the frames of a view, (H, W, 3) uint8."""
        found = self._episode(episode)
        if view not in self.schema.views:
            raise ValueError(
                f"{self.path} has no view {view!r}; available: "
                f"{', '.join(self.schema.views) or 'none'}"
            )
        key, size = self.view_key(view), self.schema.views[view]
        if self.info["features"][key]["dtype"] == "image":
            where = f"{self.file_of(episode, key)}, episode {episode}, {key}"
            for step, stored in enumerate(self._rows(episode, (key,))[key]):
                yield decode_picture(stored.as_py(), size, f"{where}, time step {step}")
            return
        path = self._existing(self.file_of(episode, key), f"{key} of episode {episode}")
        start, rate = found.row.get(f"videos/{key}/from_timestamp"), self.schema.rate
        if start is None:
            raise ValueError(
                f"{self.path}: meta/episodes does not say where {key} of episode {episode} begins; "
                "copy the dataset again, or leave that view out"
            )
        self._check_length(episode, f"the rows of episode {episode}")
        try:
            yield from decode_video(path, rate, round(start * rate), found.length, size)
        except ValueError as error:
            raise ValueError(f"{key} of episode {episode} cannot be read: {error}") from error

    def check_sizes(self, view: str) -> None:
        """Compare the sizes in the headers of a view's pictures with the announced one."""
        key, size = self.view_key(view), self.schema.views[view]
        in_video = self.info["features"][key]["dtype"] == "video"
        seen: set[Path] = set()
        for episode in range(len(self)):
            path = self._existing(self.file_of(episode, key), f"{key} of episode {episode}")
            if not in_video:
                for step, stored in enumerate(self._rows(episode, (key,))[key].to_pylist()):
                    open_picture(
                        stored, size, f"{path}, episode {episode}, {key}, time step {step}"
                    )
            elif path not in seen:
                seen.add(path)
                check_video(path, size)

    def view_key(self, view: str) -> str:
        """Return the feature that holds the frames of a view."""
        return view if view in self.info["features"] else IMAGE_PREFIX + view

    def file_of(self, episode: int, key: str) -> Path:
        """Return the path of the file that holds a feature of an episode, even if it is missing."""
        in_video = self.info["features"].get(key, {}).get("dtype") == "video"
        template, prefix = ("video_path", f"videos/{key}") if in_video else ("data_path", "data")
        row = self._episode(episode).row
        indices = {name: row.get(f"{prefix}/{name}") for name in ("chunk_index", "file_index")}
        if None in indices.values() or not self.info.get(template):
            raise ValueError(
                f"{self.path}: meta/episodes and {INFO_PATH} do not say in which file {key} of "
                f"episode {episode} lies; copy the dataset again, or leave that feature out"
            )
        fields = {"video_key": key, **indices} if in_video else indices
        known = (template, *fields.values())
        if known not in self._files:
            self._files[known] = file_name(self.path, self.info[template], template, fields)
        return self._files[known]

    def _episode(self, index: int) -> EpisodeInfo:
        if not 0 <= index < len(self.episodes):
            raise IndexError(
                f"{self.path} has the episodes 0 to {len(self.episodes) - 1}, got {index}"
            )
        return self.episodes[index]

    def _existing(self, path: Path, content: str) -> Path:
        return existing(self.path, str(path.relative_to(self.path)), content)

    def _check_length(self, episode: int, content: str) -> None:
        """Compare an episode's announced length with its table, before memory is asked for."""
        path, length = self.file_of(episode, "index"), self.episodes[episode].length
        if path not in self._row_counts:
            self._row_counts[path] = row_count(self._existing(path, content), content)
        if length > self._row_counts[path]:
            raise ValueError(
                f"{self.path}: meta/episodes announces {length} time steps for episode {episode}, "
                f"and {path} has {self._row_counts[path]} rows; copy the dataset again"
            )

    def _rows(self, episode: int, columns: tuple[str, ...]) -> pa.Table:
        """Return an episode's rows of the data table."""
        found = self._episode(episode)
        path = self.file_of(episode, columns[0]) if columns else self.file_of(episode, "index")
        content = ", ".join(columns)
        self._check_length(episode, content)
        with self._lock:
            last, table = self._cached.get(columns, (None, None))
            if last != path:
                numbers = sum(len(self.schema.vectors.get(key, ())) for key in columns)
                check_memory(
                    8 * numbers * self._row_counts[path],
                    f"the rows of {path}",
                    "copy the dataset again",
                )
                table = read_table(path, content, [*columns, "index", "episode_index"])
                self._cached[columns] = path, table
        assert table is not None
        position = whole_numbers(table["index"], f"{path}, index")
        first = int(np.searchsorted(position, found.row["dataset_from_index"]))
        rows = table.slice(first, found.length)
        episodes = set(whole_numbers(rows["episode_index"], f"{path}, episode_index").tolist())
        if len(rows) != found.length or episodes - {episode}:
            raise ValueError(
                f"{path}: expected {found.length} rows of episode {episode} from row {first} on, "
                f"got {len(rows)} rows of episodes {sorted(episodes)[:8]}; copy the dataset again"
            )
        return rows


def decode_picture(stored: Any, size: tuple[int, int], where: str) -> np.ndarray:
    """Decode a picture that is stored in the data table; the arguments are `open_picture`'s."""
    picture = open_picture(stored, size, where)
    with _damaged_picture(where):
        return np.asarray(picture.convert("RGB"))


def open_picture(stored: Any, size: tuple[int, int], where: str) -> Image.Image:
    """Read the header of a PNG or JPEG file that is stored in the data table.

    Args:
        stored: The cell: the file's bytes, beside a name.
        size: (height, width) that the dataset announces, compared before anything is decoded.
        where: Place of the picture, for messages.
    """
    content = stored.get("bytes") if isinstance(stored, dict) else None
    if not isinstance(content, bytes):
        raise ValueError(
            f"{where}: expected the bytes of a picture, got {reprlib.repr(stored)}; copy the "
            "dataset again"
        )
    with _damaged_picture(where):
        picture = Image.open(io.BytesIO(content), formats=("PNG", "JPEG"))
    if (picture.height, picture.width) != size or picture.mode not in ("RGB", "RGBA", "L", "P"):
        raise ValueError(
            f"{where}: expected a colour picture of {size[0]} x {size[1]} pixels, got "
            f"{picture.height} x {picture.width} in pillow's mode {picture.mode!r}; copy the "
            "dataset again"
        )
    return picture


@contextmanager
def _damaged_picture(where: str) -> Iterator[None]:
    try:
        yield
    # pillow raises a SyntaxError for a broken PNG, and a ValueError for one whose texts are a bomb
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise ValueError(
            f"{where}: the picture is damaged ({error}); copy the dataset again"
        ) from error
