"""Parquet tables that somebody else wrote: read with checks, their columns as arrays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

_LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
_NUMBERS = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean)


@contextmanager
def _reading(path: Path, content: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise ValueError(
            f"{path} is damaged ({error}); it holds {content}. Copy the dataset again"
        ) from error


def row_count(path: Path, content: str) -> int:
    """Return the number of rows that a file announces."""
    with _reading(path, content):
        rows: int = pq.read_metadata(path).num_rows
    return rows


def column_names(path: Path, content: str) -> list[str]:
    """Return the names of a file's columns."""
    with _reading(path, content):
        names: list[str] = pq.read_schema(path).names
    return names


def read_table(path: Path, content: str, columns: Sequence[str]) -> pa.Table:
    """Read some columns of a file; `content` is what they hold, for messages."""
    present = column_names(path, content)
    missing = [name for name in columns if name not in present]
    if missing:
        raise ValueError(
            f"{path} has no column {', '.join(missing)}, which the dataset announces; available: "
            f"{', '.join(present)}. Copy the dataset again"
        )
    with _reading(path, content):
        # without partitioning=None, folders such as chunk-000 would become columns
        return pq.read_table(path, columns=list(columns), partitioning=None)


def whole_numbers(column: pa.ChunkedArray, where: str) -> np.ndarray:
    """Return a column of whole numbers."""
    if not pa.types.is_integer(column.type) or column.null_count:
        raise ValueError(
            f"{where}: expected a whole number in each row, got {column.type} with "
            f"{column.null_count} empty rows; copy the dataset again"
        )
    return np.asarray(column.to_numpy())


def vectors(column: pa.ChunkedArray, size: int, where: str) -> np.ndarray:
    """Return a column of numbers, or of lists of `size` numbers, as (T, size) float32."""
    flat, sizes = column.combine_chunks(), [1]
    while any(is_list(flat.type) for is_list in _LISTS):
        # an empty row has the length None
        lengths = pc.unique(pc.list_value_length(flat)).to_pylist()
        sizes = [known * (length or 0) for known in sizes for length in lengths]
        flat = flat.flatten()
    if not any(is_number(flat.type) for is_number in _NUMBERS):
        raise ValueError(f"{where}: expected numbers, got {column.type}; copy the dataset again")
    if any(found != size for found in sizes):
        raise ValueError(
            f"{where}: expected {size} numbers in each of {len(column)} rows, as the dataset "
            f"announces, got rows of {', '.join(map(str, sorted(set(sizes))[:8]))}; copy the "
            "dataset again"
        )
    # Numbers beyond float32 become infinite here; `Episodes` refuses them.
    with np.errstate(over="ignore"):
        return np.asarray(flat).astype(np.float32).reshape(len(column), size)
