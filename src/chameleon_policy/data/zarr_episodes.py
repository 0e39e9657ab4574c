"""Episodes in Diffusion Policy's replay buffers.

data/<key> holds all episodes one after the other, meta/episode_ends says where each ends.
"""

from __future__ import annotations

import itertools
import math
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from chameleon_policy.data.array_episodes import ArrayEpisodes, choose_layout
from chameleon_policy.data.episodes import DEFAULT_KEYS, Keys, import_extra
from chameleon_policy.data.foreign_files import MOST_EPISODES, check_links
from chameleon_policy.data.memory import check_memory
from chameleon_policy.data.zarr_metadata import Folder, ZarrArray, read_array

ACTION = "action"
EPISODE_ENDS = "meta/episode_ends"


class ZarrEpisodes(ArrayEpisodes):
    """The episodes of a replay buffer in a folder or a zip file, of zarr's format 2 or 3."""

    def __init__(self, path: Path, keys: Keys = DEFAULT_KEYS) -> None:
        zarr = import_extra("zarr", "zarr")
        arrays, described_ends = _read_metadata(path)
        layout = choose_layout(path, arrays, keys, ACTION)
        used = {
            *layout.state,
            layout.action[0],
            *layout.view_keys.values(),
            *([layout.objects[0]] if layout.objects else []),
        }
        try:
            store = (
                zarr.storage.ZipStore(path, mode="r")
                if path.is_file()
                else zarr.storage.LocalStore(path, read_only=True)
            )
            self._arrays: dict[str, Any] = {
                key: zarr.open_array(
                    store, path=f"data/{key}", mode="r", zarr_format=arrays[key].format
                )
                for key in used
            }
            ends = zarr.open_array(
                store, path=EPISODE_ENDS, mode="r", zarr_format=described_ends.format
            )[:]
        except Exception as error:  # codecs and damaged metadata each have exceptions of their own
            raise ValueError(
                f"{path} is damaged, or no replay buffer ({error}); copy it again"
            ) from error
        self._ends = [0, *np.asarray(ends, dtype=np.int64).tolist()]
        lengths = np.diff(self._ends).tolist()
        super().__init__(path, layout, lengths=lengths, instructions=[""] * len(lengths))
        for key, array in self._arrays.items():
            if array.shape[0] != self._ends[-1]:
                raise ValueError(
                    f"{path}, data/{key}: expected {self._ends[-1]} time steps, where "
                    f"{EPISODE_ENDS} puts the end of episode {len(lengths) - 1}, got "
                    f"{array.shape[0]}; copy the dataset again"
                )

    def _stored(self, index: int, key: str) -> np.ndarray:
        first, last = self._ends[index : index + 2]
        array = self._arrays[key]
        check_memory(
            (last - first) * math.prod(array.shape[1:]) * array.dtype.itemsize,
            f"the rows of episode {index} in {self.location(index, key)}",
            "copy the dataset again",
        )
        try:
            for path in self._blosc_chunks(key, first, last):
                _check_blosc(path)
            return np.asarray(array[first:last])
        except Exception as error:  # each codec has exceptions of its own
            raise ValueError(
                f"{self.location(index, key)}, episode {index}: rows {first} to {last - 1} are "
                f"damaged or cannot be decoded ({error}); copy the dataset again"
            ) from error

    def _blosc_chunks(self, key: str, first: int, last: int) -> Iterator[Path]:
        """Yield the files that hold some rows of an array, if each is one block of blosc."""
        array = self._arrays[key]
        compressed = bool(array.compressors) and type(array.compressors[-1]).__name__ in (
            "Blosc",
            "BloscCodec",
        )
        # Members of a zip file have checksums, and blocks inside a shard are not files.
        if not compressed or array.shards is not None or self.source.is_file():
            return
        rows = range(first // array.chunks[0], (last - 1) // array.chunks[0] + 1)
        others = [
            range(-(-size // chunk))
            for size, chunk in zip(array.shape[1:], array.chunks[1:], strict=True)
        ]
        for chunk in itertools.product(rows, *others):
            path = self.source / "data" / key / array.metadata.encode_chunk_key(chunk)
            if path.is_file():  # chunks of nothing but the fill value need not exist
                yield path

    def location(self, index: int, key: str) -> str:
        """Return the location of that array, for messages."""
        return f"{self.source}, data/{key}"


def _read_metadata(path: Path) -> tuple[dict[str, ZarrArray], ZarrArray]:
    """Return what the arrays in data/ announce, and meta/episode_ends, without opening any."""
    try:
        root: Folder = zipfile.Path(path) if path.is_file() else path
    except (zipfile.BadZipFile, OSError) as error:
        raise ValueError(
            f"{path} is damaged, or no replay buffer ({error}); copy it again"
        ) from error
    if isinstance(root, Path):
        check_links(root)
    folders = {entry.name: entry for entry in root.iterdir() if entry.is_dir()}
    inside_data = folders["data"].iterdir() if "data" in folders else ()
    arrays = {entry.name: array for entry in inside_data if (array := read_array(entry))}
    ends = read_array(root / EPISODE_ENDS)
    if not arrays or ends is None:
        missing = EPISODE_ENDS if arrays else "data"
        raise ValueError(
            f"{path}: expected a replay buffer with data/ and {EPISODE_ENDS}; {missing} is "
            f"missing, found {sorted(folders)}"
        )
    if len(ends.shape) != 1 or ends.dtype.kind not in "iu" or ends.shape[0] > MOST_EPISODES:
        raise ValueError(
            f"{path}, {EPISODE_ENDS}: expected a list of whole numbers for at most "
            f"{MOST_EPISODES:,} episodes, got {ends.shape} {ends.dtype}; copy the dataset again"
        )
    return arrays, ends


def _check_blosc(path: Path) -> None:
    """Raise a ValueError if a block was cut short.

    The decoder trusts the size in the header, and would read beyond the block's memory.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        header = file.read(16)
    expected = int.from_bytes(header[12:], "little") if len(header) == 16 else 16
    if size < expected:
        raise ValueError(f"{path} has {size} of {expected} bytes")
