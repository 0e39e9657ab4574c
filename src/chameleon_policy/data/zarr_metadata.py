"""Metadata of zarr arrays, read before zarr itself opens them.

Some codecs run code that the file brings, and arrays of objects call them. So only arrays of plain
types with a codec from a short list are opened, whichever codecs are installed.
"""

from __future__ import annotations

import math
import re
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from chameleon_policy.data.foreign_files import read_json

COMPRESSORS = ("blosc", "bz2", "gzip", "lz4", "lzma", "zlib", "zstd")
FILTERS = ("adler32", "bitround", "crc32", "crc32c", "delta", "fletcher32", "shuffle")
FORMAT_3 = ("bytes", "endian", "transpose", "sharding_indexed")
CODECS = (*COMPRESSORS, *FILTERS, *FORMAT_3)
"""The codecs that are decoded; format 3 may put numcodecs. before the name."""
LARGEST_CHUNK = 4 * 2**30
"""Bytes of a decoded chunk or shard."""
MOST_CHUNKS = 10_000_000
"""Chunks of an array; each is looked for."""
_PLAIN_2 = re.compile(r"[<>|][biufcSU][0-9]{1,4}|[<>][mM]8(\[[A-Za-z]{1,2}\])?")
_PLAIN_3 = re.compile(r"bool|u?int(8|16|32|64)|float(16|32|64)|complex(64|128)")

Folder = Path | zipfile.Path


@dataclass(frozen=True, kw_only=True)
class ZarrArray:
    """What the metadata of an array announce."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    format: int
    """Zarr's format, 2 or 3."""


def read_array(folder: Folder) -> ZarrArray | None:
    """Return the metadata of an array that may be opened; None for a folder that is no array."""
    if (path := folder / "zarr.json").is_file():
        content = read_json(path)
        return None if content.get("node_type") == "group" else _format_3(path, content)
    if (path := folder / ".zarray").is_file():
        return _format_2(path, read_json(path))
    return None


def _format_2(path: Folder, content: dict[str, Any]) -> ZarrArray:
    dtype = content.get("dtype")
    _check_type(path, dtype, _PLAIN_2)
    for codec in (*(content.get("filters") or ()), content.get("compressor")):
        if codec is not None:
            _check_codec(path, codec, "id", codec)
    return _array(path, content, np.dtype(dtype), content.get("chunks"), 2)


def _format_3(path: Folder, content: dict[str, Any]) -> ZarrArray:
    dtype, grid = content.get("data_type"), content.get("chunk_grid")
    _check_type(path, dtype, _PLAIN_3)
    _check_codecs_3(path, content.get("codecs"))
    settings = grid.get("configuration") if isinstance(grid, dict) else None
    chunks = settings.get("chunk_shape") if isinstance(settings, dict) else None
    return _array(path, content, np.dtype(dtype), chunks, 3)


def _check_type(path: Folder, dtype: Any, plain: re.Pattern[str]) -> None:
    if not (isinstance(dtype, str) and plain.fullmatch(dtype)):
        raise ValueError(
            f"{path}: expected an array of numbers, got the type {dtype!r}; arrays of objects may "
            "run code and are not read. Delete that array, or write it again"
        )


def _check_codecs_3(path: Folder, codecs: Any) -> None:
    """Check the codecs of format 3, also those inside a shard."""
    if not isinstance(codecs, list):
        raise ValueError(f"{path}, codecs: expected a list, got {codecs!r}; copy the dataset again")
    for codec in codecs:
        named = {"name": codec} if isinstance(codec, str) else codec
        settings = (named.get("configuration") or {}) if isinstance(named, dict) else {}
        _check_codec(path, named, "name", settings)
        for inner in ("codecs", "index_codecs"):
            if inner in settings:
                _check_codecs_3(path, settings[inner])


def _check_codec(path: Folder, codec: Any, key: str, settings: Any) -> None:
    name = codec.get(key) if isinstance(codec, dict) else codec
    if (
        not isinstance(codec, dict)
        or not isinstance(settings, dict)
        or not isinstance(name, str)
        or name.removeprefix("numcodecs.") not in CODECS
    ):
        raise ValueError(
            f"{path}: the codec {name!r} is not one of those that are decoded "
            f"({', '.join(CODECS)}); others may run code. Write the array again with "
            "another one, or delete it"
        )
    for option in ("dtype", "astype"):  # of filters
        if settings.get(option) is not None:
            _check_type(path, settings[option], _PLAIN_2)


def _array(
    path: Folder, content: dict[str, Any], dtype: np.dtype[Any], chunks: Any, version: int
) -> ZarrArray:
    shape: Any = content.get("shape")
    for name, sizes, least in (("shape", shape, 0), ("chunks", chunks, 1)):
        if not isinstance(sizes, list) or any(
            type(size) is not int or not least <= size < 2**63 for size in sizes
        ):
            raise ValueError(
                f"{path}, {name}: expected a list of whole numbers, at least {least}, got "
                f"{sizes!r}; copy the dataset again"
            )
    if len(chunks) != len(shape):
        raise ValueError(
            f"{path}: expected chunks with as many dimensions as the shape {shape}, got {chunks}; "
            "copy the dataset again"
        )
    count = math.prod(-(-size // chunk) for size, chunk in zip(shape, chunks, strict=True))
    if math.prod(chunks) * dtype.itemsize > LARGEST_CHUNK or count > MOST_CHUNKS:
        raise ValueError(
            f"{path}: expected chunks of at most {LARGEST_CHUNK // 2**30} GiB, and at most "
            f"{MOST_CHUNKS:,} of them, got the shape {shape} in chunks of {chunks} {dtype}; write "
            "the array again with other chunks"
        )
    return ZarrArray(shape=tuple(shape), dtype=dtype, format=version)
