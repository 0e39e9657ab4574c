"""Messages as bytes: msgpack maps with text keys, and NumPy arrays as one extension type.

An array is extension type 1. Its payload is

    byte 0        number of the dtype in DTYPES
    byte 1        number of dimensions, 0 to 8
    bytes 2, 3    zero
    4 each        the sizes of the dimensions, unsigned, little endian
    the rest      the numbers, C order, little endian

Received bytes are not trusted: every length is checked before memory is allocated, and every error
is a `WireError`. Nothing is unpickled, and no dtype holds objects.
"""

from __future__ import annotations

import math
import struct
from typing import Any

import msgpack
import numpy as np

PROTOCOL = 2
"""Version of the protocol; it changes when older clients no longer fit."""

ARRAY = 1
DTYPES = tuple(
    np.dtype(name)
    for name in ("|b1", "|u1", "<u2", "<u4", "<u8", "|i1", "<i2", "<i4", "<i8", "<f2", "<f4", "<f8")
)
"""The number of a dtype is its index here."""
MAX_RANK = 8
MAX_ITEMS = 64
"""Entries of one map or list: requests have a handful."""
MAX_TEXT = 4096
"""Bytes of one text."""
_NUMBERS = {dtype: number for number, dtype in enumerate(DTYPES)}


class WireError(ValueError):
    """Bytes that are no message, or a message that cannot be sent."""


def encode(message: dict[str, Any]) -> bytes:
    """Return a message as bytes."""
    try:
        packed = msgpack.packb(message, default=_pack_array)
    except (TypeError, ValueError, OverflowError) as error:
        raise WireError(f"this message cannot be sent: {error}") from error
    assert isinstance(packed, bytes)
    return packed


def decode(data: bytes, max_bytes: int) -> dict[str, Any]:
    """Return the message in `data`; raise a WireError if it is none or has over `max_bytes`."""
    if len(data) > max_bytes:
        raise WireError(f"expected a message of at most {max_bytes} bytes, got {len(data)}")
    try:
        message = msgpack.unpackb(
            data,
            ext_hook=_unpack_array,
            max_array_len=MAX_ITEMS,
            max_map_len=MAX_ITEMS,
            max_str_len=MAX_TEXT,
            max_bin_len=MAX_TEXT,
            max_ext_len=max_bytes,
        )
    except WireError:
        raise
    # msgpack raises different exceptions for bad lengths, texts and timestamps (OverflowError: one
    # beyond Python's range), keys that cannot be hashed and endless nesting.
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException) as error:
        raise WireError(
            f"expected one msgpack message, got {len(data)} bytes that are none: {_short(error)}"
        ) from error
    if not isinstance(message, dict) or not all(isinstance(key, str) for key in message):
        raise WireError(f"expected a map with text keys, got {type(message).__name__}")
    return message


def _pack_array(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if not isinstance(value, np.ndarray):
        raise TypeError(f"{type(value).__name__} is no number, text, list, map or NumPy array")
    dtype = value.dtype.newbyteorder("<")
    if dtype not in _NUMBERS:
        raise TypeError(
            f"arrays of {value.dtype} cannot be sent; "
            f"use one of {', '.join(each.name for each in DTYPES)}"
        )
    if value.ndim > MAX_RANK:
        raise TypeError(f"expected an array of at most {MAX_RANK} dimensions, got {value.ndim}")
    header = struct.pack(f"<BBxx{value.ndim}I", _NUMBERS[dtype], value.ndim, *value.shape)
    return msgpack.ExtType(ARRAY, header + value.astype(dtype, copy=False).tobytes())


def _unpack_array(code: int, payload: bytes) -> np.ndarray:
    if code != ARRAY:
        raise WireError(f"expected arrays as extension type {ARRAY}, got type {code}")
    if len(payload) < 4:
        raise WireError(f"array: expected at least 4 bytes, got {len(payload)}")
    number, rank = payload[0], payload[1]
    if number >= len(DTYPES) or rank > MAX_RANK or payload[2:4] != b"\0\0":
        raise WireError(f"array: there is no dtype {number} with {rank} dimensions")
    start = 4 + 4 * rank
    if len(payload) < start:
        raise WireError(f"array: expected {rank} dimensions, and the bytes end before them")
    dtype, shape = DTYPES[number], struct.unpack_from(f"<{rank}I", payload, 4)
    # Python's integers do not overflow, and nothing is allocated before the sizes are compared
    if (expected := math.prod(shape) * dtype.itemsize) != len(payload) - start:
        raise WireError(
            f"array: shape {shape} of {dtype.name} is {expected} bytes, got {len(payload) - start}"
        )
    if 0 in shape and max(shape) > MAX_ITEMS:
        raise WireError(f"array: {shape} is empty, with a dimension above {MAX_ITEMS}")
    # A copy, so that the array is aligned and does not keep the whole message alive
    return np.frombuffer(payload, dtype, offset=start).reshape(shape).copy()


def _short(error: BaseException) -> str:
    text = f"{type(error).__name__}: {error}"
    return text if len(text) <= 200 else f"{text[:200]}..."
