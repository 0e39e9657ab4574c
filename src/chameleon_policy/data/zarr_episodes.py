"""Episodes in Diffusion Policy's replay buffers.

data/<key> holds all episodes one after the other, meta/episode_ends says where each ends.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from chameleon_policy.data.array_episodes import ArrayEpisodes, choose_layout
from chameleon_policy.data.episodes import DEFAULT_KEYS, Keys, import_extra

ACTION = "action"
EPISODE_ENDS = "meta/episode_ends"


class ZarrEpisodes(ArrayEpisodes):
    """The episodes of a replay buffer in a folder or a zip file, of zarr's format 2 or 3."""

    def __init__(self, path: Path, keys: Keys = DEFAULT_KEYS) -> None:
        zarr = import_extra("zarr", "zarr")
        try:
            group = zarr.open_group(
                zarr.storage.ZipStore(path, mode="r") if path.is_file() else path, mode="r"
            )
            present = {name: name in group for name in ("data", EPISODE_ENDS)}
            found = sorted(group)
            arrays = dict(group["data"].arrays()) if present["data"] else {}
            ends = (
                np.asarray(group[EPISODE_ENDS][:], dtype=np.int64)
                if present[EPISODE_ENDS]
                else np.zeros(0, np.int64)
            )
        # codecs, zip files and damaged metadata each have exceptions of their own
        except Exception as error:
            raise ValueError(
                f"{path} is damaged, or no replay buffer ({error}); copy it again"
            ) from error
        for name, is_present in present.items():
            if not is_present:
                raise ValueError(
                    f"{path}: expected a replay buffer with data/ and {EPISODE_ENDS}; {name} is "
                    f"missing, found {found}"
                )
        layout = choose_layout(path, arrays, keys, ACTION)
        used = {
            *layout.state,
            layout.action[0],
            *layout.view_keys.values(),
            *([layout.objects[0]] if layout.objects else []),
        }
        self._arrays: dict[str, Any] = {key: arrays[key] for key in used}
        self._ends = [0, *ends.tolist()]
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
        try:
            for path in self._blosc_chunks(key, first, last):
                _check_blosc(path)
            return np.asarray(self._arrays[key][first:last])
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
