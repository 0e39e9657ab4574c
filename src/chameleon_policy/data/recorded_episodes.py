"""Recorded episodes that are not yet assembled into a dataset.

Each is a folder that is written atomically, by any number of processes:

parts/episode-000007/part.json       schema, length, instruction, number of sampled frames per view
                     arrays.npz      the vectors, and the image histograms for the statistics
                     third.mp4       one video per view
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from chameleon_policy.data.lerobot_statistics import image_histogram
from chameleon_policy.data.schema import Schema
from chameleon_policy.data.video import encode_video
from chameleon_policy.writing import named

_PART = re.compile(r"episode-(\d{6,})")


@dataclass(frozen=True, kw_only=True)
class RecordedEpisode:
    """One recorded episode, whose frames remain on disk."""

    folder: Path
    length: int
    instruction: str
    vectors: Mapping[str, np.ndarray]
    histograms: Mapping[str, tuple[np.ndarray, int]]
    """View -> histogram (3, 256) and the number of frames in it."""

    def video(self, view: str) -> Path:
        """Return the path of a view's video."""
        return self.folder / f"{view}.mp4"


def part_folder(parts: Path, index: int) -> Path:
    """Return the folder of an episode, which exists once it is complete."""
    return parts / f"episode-{index:06d}"


def part_indices(parts: Path) -> set[int]:
    """Return the indices of the complete episodes, without those whose write was interrupted."""
    if not parts.is_dir():
        return set()
    return {int(found[1]) for entry in parts.iterdir() if (found := _PART.fullmatch(entry.name))}


def write_part(
    parts: Path,
    index: int,
    schema: Schema,
    *,
    frames: Mapping[str, np.ndarray],
    vectors: Mapping[str, np.ndarray],
    instruction: str,
) -> None:
    """Write one recorded episode.

    Its folder gets its name when all files are on disk, so that a folder with that name is always
    complete. Several processes may write episodes of different indices at the same time.

    Args:
        parts: Folder of all recorded episodes.
        index: Index of the episode.
        schema: Contents of each frame.
        frames: View -> (T, H, W, 3) uint8.
        vectors: Feature -> (T, d) float32.
        instruction: The task in words.
    """
    length = _check(index, schema, frames, vectors, instruction)
    final = part_folder(parts, index)
    if final.exists():
        raise FileExistsError(
            f"episode {index} is already recorded in {final}; skip it, or delete that folder to "
            "replace it"
        )
    unfinished = parts / f".unfinished-{final.name}"
    if unfinished.exists():  # an earlier process was killed while it wrote this episode
        shutil.rmtree(unfinished)
    try:
        with named(final):
            unfinished.mkdir(parents=True)
            facts = {
                "length": length,
                "instruction": instruction,
                "sampled_frames": _write_arrays(unfinished, schema, frames, vectors),
                "schema": schema.to_json(),
            }
            (unfinished / "part.json").write_text(
                json.dumps(facts, indent=2, ensure_ascii=False), encoding="utf-8"
            )
            # without this, a power cut could leave a folder with its final name and empty files
            for path in unfinished.iterdir():
                with path.open("rb") as file:
                    os.fsync(file.fileno())
            unfinished.rename(final)
    finally:  # a full disk needs the space
        shutil.rmtree(unfinished, ignore_errors=True)


def _write_arrays(
    folder: Path,
    schema: Schema,
    frames: Mapping[str, np.ndarray],
    vectors: Mapping[str, np.ndarray],
) -> dict[str, int]:
    """Write the videos and arrays.npz; return the number of sampled frames of each view."""
    arrays = {f"vector/{key}": vectors[key] for key in schema.vectors}
    sampled = {}
    for view in schema.views:
        encode_video(folder / f"{view}.mp4", frames[view], schema.rate)
        arrays[f"histogram/{view}"], sampled[view] = image_histogram(frames[view])
    with (folder / "arrays.npz").open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]  # numpy's stub mistakes them for allow_pickle
    return sampled


def read_part(parts: Path, index: int, schema: Schema) -> RecordedEpisode:
    """Read a recorded episode and check that it was recorded with this schema."""
    folder = part_folder(parts, index)
    facts = json.loads((folder / "part.json").read_text(encoding="utf-8"))
    expected = schema.to_json()
    for name, got in facts["schema"].items():
        if got != expected[name]:
            raise ValueError(
                f"episode {index} in {folder} was recorded with {name} = {got}, expected "
                f"{expected[name]}; record into another folder, or delete {folder} to record it "
                "again"
            )
    with np.load(folder / "arrays.npz", allow_pickle=False) as arrays:
        return RecordedEpisode(
            folder=folder,
            length=facts["length"],
            instruction=facts["instruction"],
            vectors={key: arrays[f"vector/{key}"] for key in schema.vectors},
            histograms={
                view: (arrays[f"histogram/{view}"], facts["sampled_frames"][view])
                for view in schema.views
            },
        )


def _check(
    index: int,
    schema: Schema,
    frames: Mapping[str, np.ndarray],
    vectors: Mapping[str, np.ndarray],
    instruction: str,
) -> int:
    """Check that an episode agrees with the schema; return its number of frames."""
    where = f"episode {index}"
    if index < 0:
        raise ValueError(f"indices of episodes count from 0, got {index}")
    if not instruction.strip():
        raise ValueError(f"{where}: expected an instruction in words, got {instruction!r}")
    for kind, expected, got in (
        ("views", schema.views, frames),
        ("vectors", schema.vectors, vectors),
    ):
        if expected.keys() != got.keys():
            raise ValueError(f"{where}: expected the {kind} {sorted(expected)}, got {sorted(got)}")
    for key, values in vectors.items():
        size = len(schema.vectors[key])
        if values.ndim != 2 or values.shape[1] != size or values.dtype != np.float32:
            raise ValueError(
                f"{where}, {key}: expected (T, {size}) float32, got {values.shape} {values.dtype}"
            )
        if not np.isfinite(values).all():
            row, column = np.argwhere(~np.isfinite(values))[0]
            name = schema.vectors[key][column]
            raise ValueError(
                f"{where}, {key}: {name!r} is {values[row, column]} in frame {row}; expected "
                "finite numbers"
            )
    for view, pixels in frames.items():
        height, width = schema.views[view]
        if pixels.ndim != 4 or pixels.shape[1:] != (height, width, 3) or pixels.dtype != np.uint8:
            raise ValueError(
                f"{where}, {view}: expected (T, {height}, {width}, 3) uint8, got {pixels.shape} "
                f"{pixels.dtype}"
            )
    lengths = {key: len(values) for key, values in (*vectors.items(), *frames.items())}
    if len(set(lengths.values())) != 1 or 0 in lengths.values():
        listing = ", ".join(f"{key} {length}" for key, length in lengths.items())
        raise ValueError(
            f"{where}: expected the same number of frames, at least 1, in every array; got "
            f"{listing}"
        )
    return next(iter(lengths.values()))
