"""Messages between robot and server: exact both ways, and malformed ones are refused."""

from __future__ import annotations

import math
import pickle
import struct
import subprocess
import sys
from contextlib import suppress
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chameleon_client import Metadata, WireError
from chameleon_client.wire import DTYPES, MAX_ITEMS, MAX_RANK, MAX_TEXT, decode, encode

LIMIT = 10_000


def array(payload: bytes) -> bytes:
    """Return a message with one array of this payload."""
    return msgpack.packb({"a": msgpack.ExtType(1, payload)})


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 2), (2, 1, 3, 1)], ids=str)
def test_arrays_arrive_unchanged(dtype: np.dtype, shape: tuple[int, ...]) -> None:
    sent = np.random.default_rng(0).integers(0, 2, shape).astype(dtype)
    back = decode(encode({"a": sent}), LIMIT)["a"]
    assert back.dtype == dtype and back.shape == shape and back.tobytes() == sent.tobytes()
    assert back.flags.writeable and back.flags.aligned


def test_arrays_in_another_order_arrive_the_same() -> None:
    straight = np.arange(12, dtype=np.float32).reshape(3, 4)
    for sent in (
        straight.T,
        straight[::-1, ::2],
        straight.astype(">f4"),
        np.asfortranarray(straight),
    ):
        np.testing.assert_array_equal(decode(encode({"a": sent}), LIMIT)["a"], sent)
    special = np.array([np.nan, -np.inf, -0.0, 1e-45], np.float32)
    assert decode(encode({"a": special}), LIMIT)["a"].tobytes() == special.tobytes()


def test_the_layout_is_the_documented_one() -> None:
    """Written by hand from docs/serving.md, as a client in another language would."""
    payload = b"\x0a\x02\x00\x00" + struct.pack("<II", 1, 2) + struct.pack("<ff", 1.5, -2.0)
    by_hand = b"\x81" + b"\xa1a" + b"\xc7" + bytes([len(payload)]) + b"\x01" + payload
    assert encode({"a": np.array([[1.5, -2.0]], np.float32)}) == by_hand
    np.testing.assert_array_equal(decode(by_hand, LIMIT)["a"], [[1.5, -2.0]])


PLAIN = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
)
VALUES = st.recursive(
    PLAIN,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.text(max_size=8), VALUES, max_size=6))
def test_plain_values_arrive_unchanged(message: dict[str, Any]) -> None:
    assert decode(encode(message), 100_000) == message


@given(st.binary(max_size=200))
def test_random_bytes_are_a_message_or_a_wire_error(data: bytes) -> None:
    with suppress(WireError):
        assert isinstance(decode(data, LIMIT), dict)


@given(st.binary(max_size=60))
def test_random_payloads_are_an_array_or_a_wire_error(payload: bytes) -> None:
    try:
        back = decode(array(payload), LIMIT)["a"]
    except WireError:
        return
    assert back.dtype in DTYPES and back.nbytes == len(payload) - 4 - 4 * payload[1]
    assert math.prod(back.shape) * back.itemsize == back.nbytes


HEADER = struct.pack("<BBxx", 10, 1)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "none"),
        (b"\xc1", "none"),
        (encode({"a": 1})[:-1], "none"),
        (encode({"a": 1}) + b"\0", "ExtraData"),
        (msgpack.packb([1]), "a map with text keys, got list"),
        (msgpack.packb(None), "got NoneType"),
        (msgpack.packb({1: 2}), "none"),
        (msgpack.packb({b"a": 2}), "a map with text keys"),
        (b"\x81\xa1a" + b"\x91" * 5_000 + b"\xc0", "none"),
        (b"\x81\xa1a" + b"\x81\xa1a" * 3_000 + b"\xc0", "none"),
        (b"\x81\xa1a\xdd\xff\xff\xff\xff", "max_array_len"),
        (b"\x81\xa1a\xdf\xff\xff\xff\xff", "max_map_len"),
        (b"\x81\xa1a\xdb\xff\xff\xff\xff", "that are none"),
        (b"\x81\xa1a\xc6\xff\xff\xff\xff", "that are none"),
        (b"\x81\xa1a\xc9\xff\xff\xff\xff\x01", "max_ext_len"),
        (msgpack.packb({"a": [0] * (MAX_ITEMS + 1)}), "max_array_len"),
        (msgpack.packb({"a": "x" * (MAX_TEXT + 1)}), "max_str_len"),
        (b"\x81\xa1a\xa2\xff\xfe", "none"),
        (b"\x81\xa1a\xc7\x0c\xff" + b"\xff" * 12, "none"),
        (msgpack.packb({"a": msgpack.ExtType(2, b"\0" * 8)}), "extension type 1, got type 2"),
        (array(b"\0\0\0"), "at least 4 bytes, got 3"),
        (array(b"\x0c\0\0\0"), "no dtype 12"),
        (array(struct.pack("<BBxx", 10, MAX_RANK + 1) + b"\0" * 40), "9 dimensions"),
        (array(b"\x0a\0\1\0"), "no dtype 10"),
        (array(HEADER), "the bytes end before them"),
        (
            array(HEADER + struct.pack("<I", 2) + b"\0" * 7),
            r"shape \(2,\) of float32 is 8 bytes, got 7",
        ),
        (array(struct.pack("<BBxx8I", 10, 8, *[2**32 - 1] * 8)), "is .* bytes, got 0"),
        (array(struct.pack("<BBxx2I", 10, 2, 0, 2**32 - 1)), "is empty, with a dimension above"),
        (b"\0" * (LIMIT + 1), "at most 10000 bytes, got 10001"),
    ],
)
def test_malformed_bytes_are_a_wire_error(data: bytes, message: str) -> None:
    with pytest.raises(WireError, match=message):
        decode(data, LIMIT)


@pytest.mark.parametrize(
    "value",
    [np.array([object()]), np.array(["text"]), np.array([1j]), np.zeros((1,) * 9), {1}, 2**64],
    ids=["objects", "texts", "complex", "nine dimensions", "a set", "too large"],
)
def test_values_that_cannot_be_sent_are_refused(value: Any) -> None:
    with pytest.raises(WireError, match="cannot be sent"):
        encode({"a": value})


def test_no_pickle_is_read(tmp_path: Any) -> None:
    trap = tmp_path / "trap"

    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return trap.write_text, ("sprung",)

    for data in (pickle.dumps(Trap()), msgpack.packb({"a": pickle.dumps(Trap())})):
        with suppress(WireError):
            decode(data, LIMIT)
    assert not trap.exists()


def test_metadata_of_another_protocol_are_refused() -> None:
    with pytest.raises(ValueError, match="metadata of protocol 2, got 'metadata' of protocol 1"):
        Metadata.of({"kind": "metadata", "protocol": 1})
    with pytest.raises(ValueError, match=r"lack policy, method"):
        Metadata.of({"kind": "metadata", "protocol": 2})


def test_the_client_needs_no_torch() -> None:
    code = (
        "import sys, chameleon_client; "
        "print(sorted({'torch', 'chameleon_policy'} & sys.modules.keys()))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"
