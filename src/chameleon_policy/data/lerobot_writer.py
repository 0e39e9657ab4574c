"""Assembling recorded episodes into a LeRobot v3.0 dataset.

Tables are written with pyarrow, videos are joined by copying their packets.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from chameleon_policy.data.lerobot_statistics import (
    FeatureStatistics,
    image_statistics,
    vector_statistics,
)
from chameleon_policy.data.recorded_episodes import RecordedEpisode, part_indices, read_part
from chameleon_policy.data.schema import (
    CODEBASE_VERSION,
    DATA_PATH,
    EPISODES_PATH,
    INDEX_FEATURES,
    INFO_PATH,
    STATS_PATH,
    TASKS_PATH,
    VIDEO_PATH,
    Schema,
    image_key,
)
from chameleon_policy.data.video import join_videos, video_info

MEGABYTE = 1024**2


@dataclass(frozen=True, kw_only=True)
class FileLimits:
    """The limits at which a further file is begun. An episode never spans two files."""

    data_mb: float = 100
    video_mb: float = 200
    video_seconds: float = 1000
    """lerobot looks up the time of a frame in float32, within 0.1 ms. From 1,024 s on, float32 has
    a resolution of 0.12 ms, so that some frames would not be found. info.json has no field for this
    limit."""
    files_per_chunk: int = 1000


DEFAULT_LIMITS = FileLimits()


def assemble(
    parts: Path,
    out: Path,
    schema: Schema,
    episodes: Sequence[int],
    *,
    limits: FileLimits = DEFAULT_LIMITS,
) -> None:
    """Assemble recorded episodes into a LeRobot v3.0 dataset.

    Files of an earlier call, which may have been interrupted, are replaced. meta/info.json is
    removed first and written last, so that its presence means that the dataset is complete. Other
    files in `out` are left alone. All vectors are held in memory, frames are not.

    Args:
        parts: Folder that `write_part` wrote into.
        out: Folder of the dataset.
        schema: Contents of each frame; every episode must have been recorded with it.
        episodes: Indices of the recorded episodes, in the order in which they become episodes
            0, 1, 2, ... of the dataset.
        limits: The limits at which a further data or video file is begun.
    """
    _check_episodes(parts, episodes)
    loaded = [read_part(parts, index, schema) for index in episodes]
    _remove_earlier(out)

    task_indices: dict[str, int] = {}
    for episode in loaded:
        task_indices.setdefault(episode.instruction, len(task_indices))
    columns = _columns(loaded, task_indices, schema)

    rows = [_episode_row(index, episode, columns, schema) for index, episode in enumerate(loaded)]
    _write_data(out, columns, rows, limits)
    for view in schema.views:
        _write_videos(out, view, loaded, rows, schema, limits)
    _write_episodes(out, rows)
    _write_tasks(out, task_indices)
    _write_json(out / STATS_PATH, _listed(_dataset_statistics(loaded, columns, schema)))
    _write_json(
        out / INFO_PATH,
        _info(out, schema, limits, len(loaded), len(columns["index"]), len(task_indices)),
    )


def _check_episodes(parts: Path, episodes: Sequence[int]) -> None:
    if not episodes:
        raise ValueError("expected the indices of the episodes to assemble, got none")
    if len(set(episodes)) != len(episodes):
        twice = sorted({index for index in episodes if list(episodes).count(index) > 1})
        raise ValueError(f"expected every episode once; asked for more than once: {twice}")
    missing = sorted(set(episodes) - part_indices(parts))
    if missing:
        shown = ", ".join(map(str, missing[:10])) + (", ..." if len(missing) > 10 else "")
        raise FileNotFoundError(
            f"{len(missing)} of {len(episodes)} episodes are not yet recorded in {parts}: {shown}; "
            "run the command that records them again, it continues where it stopped"
        )


def _remove_earlier(out: Path) -> None:
    """Delete the files of an earlier dataset in `out`, and nothing else in the folder."""
    (out / INFO_PATH).unlink(missing_ok=True)
    for pattern in ("data/chunk-*", "videos/*/chunk-*", "meta/episodes/chunk-*"):
        for folder in out.glob(pattern):
            shutil.rmtree(folder)


def _columns(
    loaded: list[RecordedEpisode], task_indices: dict[str, int], schema: Schema
) -> dict[str, np.ndarray]:
    """Return every column of the data table over the whole dataset: (frames, d)."""
    lengths = [episode.length for episode in loaded]
    frame_index = np.concatenate([np.arange(length) for length in lengths])
    indices = {
        "timestamp": frame_index / schema.fps,
        "frame_index": frame_index,
        "episode_index": np.repeat(np.arange(len(loaded)), lengths),
        "index": np.arange(len(frame_index)),
        "task_index": np.repeat([task_indices[episode.instruction] for episode in loaded], lengths),
    }
    vectors = {
        key: np.concatenate([episode.vectors[key] for episode in loaded]) for key in schema.vectors
    }
    return vectors | {
        key: indices[key].astype(dtype)[:, None] for key, dtype in INDEX_FEATURES.items()
    }


def _episode_row(
    index: int, episode: RecordedEpisode, columns: dict[str, np.ndarray], schema: Schema
) -> dict[str, Any]:
    """Return one row of meta/episodes, to which `_write_data` and `_write_videos` add its files."""
    first = int(np.searchsorted(columns["episode_index"][:, 0], index))
    rows = slice(first, first + episode.length)
    statistics = {key: vector_statistics(values[rows]) for key, values in columns.items()}
    statistics |= {
        image_key(view): image_statistics(*episode.histograms[view]) for view in schema.views
    }
    return {
        "episode_index": index,
        "tasks": [episode.instruction],
        "length": episode.length,
        "dataset_from_index": rows.start,
        "dataset_to_index": rows.stop,
        "meta/episodes/chunk_index": 0,
        "meta/episodes/file_index": 0,
        **{
            f"stats/{key}/{name}": value.tolist()
            for key, values in statistics.items()
            for name, value in values.items()
        },
    }


def _files(sizes: Sequence[tuple[float, ...]], limits: tuple[float, ...]) -> list[list[int]]:
    """Distribute episodes over files, in order; only a file of a single episode may exceed a limit.

    Args:
        sizes: Sizes of each episode.
        limits: Limit of the sum of each size in a file.
    """
    files: list[list[int]] = []
    filled: list[float] = []
    for episode, size in enumerate(sizes):
        filled = [a + b for a, b in zip(filled, size, strict=True)] if files else []
        if not files or any(a > limit for a, limit in zip(filled, limits, strict=True)):
            files.append([])
            filled = list(size)
        files[-1].append(episode)
    return files


def _file_indices(file_number: int, limits: FileLimits) -> dict[str, int]:
    chunk_index, file_index = divmod(file_number, limits.files_per_chunk)
    return {"chunk_index": chunk_index, "file_index": file_index}


def _write_data(
    out: Path, columns: dict[str, np.ndarray], rows: list[dict[str, Any]], limits: FileLimits
) -> None:
    table = pa.table({key: _arrow(values) for key, values in columns.items()})
    slices = [table.slice(row["dataset_from_index"], row["length"]) for row in rows]
    for number, episodes in enumerate(
        _files([(piece.nbytes / MEGABYTE,) for piece in slices], (limits.data_mb,))
    ):
        indices = _file_indices(number, limits)
        path = out / DATA_PATH.format(**indices)
        path.parent.mkdir(parents=True, exist_ok=True)
        with pq.ParquetWriter(path, table.schema, compression="snappy") as writer:
            for episode in episodes:
                writer.write_table(slices[episode])
                rows[episode] |= {f"data/{name}": value for name, value in indices.items()}


def _arrow(values: np.ndarray) -> pa.Array:
    """Return a column (T, d) as lists of fixed length.

    If d is 1, return plain numbers, as LeRobot stores the shape (1,).
    """
    flat = pa.array(np.ascontiguousarray(values).ravel())
    return (
        flat if values.shape[1] == 1 else pa.FixedSizeListArray.from_arrays(flat, values.shape[1])
    )


def _write_videos(
    out: Path,
    view: str,
    loaded: list[RecordedEpisode],
    rows: list[dict[str, Any]],
    schema: Schema,
    limits: FileLimits,
) -> None:
    key = image_key(view)
    sizes = [
        (episode.video(view).stat().st_size / MEGABYTE, episode.length / schema.fps)
        for episode in loaded
    ]
    for number, episodes in enumerate(_files(sizes, (limits.video_mb, limits.video_seconds))):
        indices = _file_indices(number, limits)
        path = out / VIDEO_PATH.format(video_key=key, **indices)
        path.parent.mkdir(parents=True, exist_ok=True)
        join_videos([loaded[episode].video(view) for episode in episodes], path, schema.rate)
        first = 0
        for episode in episodes:
            last = first + loaded[episode].length
            times = {
                "from_timestamp": float(first / schema.rate),
                "to_timestamp": float(last / schema.rate),
            }
            rows[episode] |= {
                f"videos/{key}/{name}": value for name, value in (indices | times).items()
            }
            first = last


def _write_episodes(out: Path, rows: list[dict[str, Any]]) -> None:
    path = out / EPISODES_PATH.format(chunk_index=0, file_index=0)
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path, compression="snappy")


def _write_tasks(out: Path, task_indices: dict[str, int]) -> None:
    """Write the table of tasks as pandas would, without pandas.

    lerobot expects the text as the index of the data frame.
    """
    number, text = "task_index", "__index_level_0__"
    described = {
        "index_columns": [text],
        "column_indexes": [
            {
                "name": None,
                "field_name": None,
                "pandas_type": "unicode",
                "numpy_type": "object",
                "metadata": None,
            }
        ],
        "columns": [
            {
                "name": number,
                "field_name": number,
                "pandas_type": "int64",
                "numpy_type": "int64",
                "metadata": None,
            },
            {
                "name": None,
                "field_name": text,
                "pandas_type": "unicode",
                "numpy_type": "object",
                "metadata": None,
            },
        ],
        "creator": {"library": "pyarrow", "version": pa.__version__},
        "pandas_version": "2.0.0",
    }
    table = pa.table(
        {number: pa.array(list(task_indices.values()), pa.int64()), text: list(task_indices)}
    )
    pq.write_table(
        table.replace_schema_metadata({"pandas": json.dumps(described)}), out / TASKS_PATH
    )


def _dataset_statistics(
    loaded: list[RecordedEpisode], columns: dict[str, np.ndarray], schema: Schema
) -> dict[str, FeatureStatistics]:
    statistics = {key: vector_statistics(values) for key, values in columns.items()}
    for view in schema.views:
        histograms = [episode.histograms[view] for episode in loaded]
        statistics[image_key(view)] = image_statistics(
            np.sum([histogram for histogram, _ in histograms], axis=0),
            sum(count for _, count in histograms),
        )
    return statistics


def _listed(statistics: dict[str, FeatureStatistics]) -> dict[str, dict[str, Any]]:
    return {
        key: {name: value.tolist() for name, value in values.items()}
        for key, values in statistics.items()
    }


def _info(
    out: Path, schema: Schema, limits: FileLimits, episodes: int, frames: int, tasks: int
) -> dict[str, Any]:
    # an integer where possible, as in lerobot's own datasets: some of its tools need one
    fps = int(schema.fps) if float(schema.fps).is_integer() else schema.fps
    features: dict[str, Any] = {}
    for view, (height, width) in schema.views.items():
        first = out / VIDEO_PATH.format(video_key=image_key(view), chunk_index=0, file_index=0)
        features[image_key(view)] = {
            "dtype": "video",
            "shape": [height, width, 3],
            "names": ["height", "width", "channels"],
            "info": video_info(first, fps),
        }
    for key, names in schema.vectors.items():
        features[key] = {"dtype": "float32", "shape": [len(names)], "names": list(names)}
    for key, dtype in INDEX_FEATURES.items():
        features[key] = {"dtype": dtype, "shape": [1], "names": None}
    return {
        "codebase_version": CODEBASE_VERSION,
        "robot_type": schema.robot_type,
        "total_episodes": episodes,
        "total_frames": frames,
        "total_tasks": tasks,
        "chunks_size": limits.files_per_chunk,
        "data_files_size_in_mb": limits.data_mb,
        "video_files_size_in_mb": limits.video_mb,
        "fps": fps,
        "splits": {"train": f"0:{episodes}"},
        "data_path": DATA_PATH,
        "video_path": VIDEO_PATH if schema.views else None,
        "features": features,
    }


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".unfinished-{path.name}")
    unfinished.write_text(json.dumps(content, indent=2, ensure_ascii=False), encoding="utf-8")
    unfinished.replace(path)
