"""Malformed messages, and clients that send them."""

from __future__ import annotations

import random
import struct
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgpack
import numpy as np
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from chameleon_client.wire import decode, encode
from examples import STATE_FEATURES
from serving_examples import episode

SEEN = episode(STATE_FEATURES, 2, seed=77)[0]
Fuzz = Callable[[random.Random, dict[str, Any]], bytes]


def raw(url: str, **options: Any) -> ClientConnection:
    """Return an open websocket, which does not check what it sends."""
    return connect(url, compression=None, close_timeout=5, **options).__enter__()


# Malformed messages. `valid` is a request that would be accepted, with the next number


def random_bytes(rng: random.Random, valid: dict[str, Any]) -> bytes:
    return bytes([rng.choice([0xC1, 0xD4, 0xDF, 0x93, 0xFF])]) + rng.randbytes(rng.randrange(200))


def truncated(rng: random.Random, valid: dict[str, Any]) -> bytes:
    data = encode(valid)
    return data[: rng.randrange(len(data))]


def followed_by_more(rng: random.Random, valid: dict[str, Any]) -> bytes:
    return encode(valid) + rng.randbytes(1 + rng.randrange(8))


def huge_length(rng: random.Random, valid: dict[str, Any]) -> bytes:
    head = rng.choice([b"\xdd", b"\xdf", b"\xdb", b"\xc6", b"\xc9"])
    return (
        b"\x82\xa4kind\xa3act\xa7request"
        + head
        + struct.pack(">I", rng.randrange(2**20, 2**32))
        + rng.randbytes(9)
    )


def deeply_nested(rng: random.Random, valid: dict[str, Any]) -> bytes:
    return (
        b"\x81\xa4kind"
        + rng.choice([b"\x91", b"\x81\xa1a"]) * rng.randrange(1100, 20_000)
        + b"\xc0"
    )


def wrong_array(rng: random.Random, valid: dict[str, Any]) -> bytes:
    """Return an array whose dtype, rank or size does not fit its bytes."""
    payload = rng.choice(
        [
            struct.pack("<BBxx", rng.randrange(12, 256), 1),
            struct.pack("<BBxxI", 10, 1, rng.randrange(1, 2**32)),
            struct.pack("<BBxx", 10, rng.randrange(9, 256)) + rng.randbytes(50),
            struct.pack("<BBxx8I", 10, 8, *[2**31] * 8) + rng.randbytes(rng.randrange(1, 40)),
            rng.randbytes(rng.randrange(4)),
        ]
    )
    observation = {"proprioception": msgpack.ExtType(1, payload)}
    return encode({**valid, "observation": observation})


def wrong_extension(rng: random.Random, valid: dict[str, Any]) -> bytes:
    return encode(
        {**valid, "tick": msgpack.ExtType(rng.choice([0, 2, 3, 77, 127]), rng.randbytes(8))}
    )


def no_map(rng: random.Random, valid: dict[str, Any]) -> bytes:
    return msgpack.packb(rng.choice([None, 1, "open", [1, 2], 2.5, True, {1: 2}, {b"kind": 1}]))


STRANGE = [
    None,
    True,
    -1,
    2**64 - 1,
    1.5,
    float("nan"),
    "",
    "\0",
    "x" * 3000,
    b"bytes",
    [],
    [[]],
    {},
    {"a": {}},
    [0] * 64,
]


def wrong_type(rng: random.Random, valid: dict[str, Any]) -> bytes:
    name = rng.choice(["kind", "session", "tick", "observation", "request"])
    fine = {"kind": (), "session": (), "tick": (), "observation": (), "request": (2**64 - 1,)}[name]
    return encode({**valid, name: rng.choice([value for value in STRANGE if value not in fine])})


def missing_field(rng: random.Random, valid: dict[str, Any]) -> bytes:
    left_out = rng.choice(["kind", "session", "tick", "observation", "request"])
    return encode({name: value for name, value in valid.items() if name != left_out})


def unknown_field(rng: random.Random, valid: dict[str, Any]) -> bytes:
    return encode({**valid, rng.choice(["ticks", "Session", "", "__class__", "x" * 500]): 1})


def unknown_kind(rng: random.Random, valid: dict[str, Any]) -> bytes:
    return encode(
        {
            **valid,
            "kind": rng.choice(
                ["reset", "Observe", "observe ", "", "__init__", "shutdown", "x" * 1000]
            ),
        }
    )


def wrong_session(rng: random.Random, valid: dict[str, Any]) -> bytes:
    return encode(
        {**valid, "session": rng.choice(["episode-0", "episode-1", "nobody", "\ud7ff", "s" * 64])}
    )


def wrong_observation(rng: random.Random, valid: dict[str, Any]) -> bytes:
    """Return an observation whose arrays do not fit the policy."""
    name = rng.choice(["proprioception", "objects"])
    good = valid["observation"][name]
    bad = rng.choice(
        [
            np.full_like(good, np.nan),
            np.full_like(good, -np.inf),
            good.astype(np.float64) * 1e300,
            good[:-1],
            good[None],
            good.ravel()[:0],
            np.zeros((64, 64), np.uint8),
            good.sum(),
            np.zeros((0, 64)),
        ]
    )
    images = {"images": {"third": np.zeros((8, 8, 3), np.uint8)}} if rng.random() < 0.2 else {}
    return encode(
        {**valid, "observation": {**valid["observation"], name: np.asarray(bad), **images}}
    )


def wrong_tick(rng: random.Random, valid: dict[str, Any]) -> bytes:
    return encode({**valid, "tick": rng.choice([valid["tick"] + 1, valid["tick"] + 9, 2**63 - 1])})


def replayed(rng: random.Random, valid: dict[str, Any]) -> bytes:
    # the number of `open`, or of the first observation
    return encode({**valid, "request": rng.randrange(2)})


def bits_flipped(rng: random.Random, valid: dict[str, Any]) -> bytes:
    data = bytearray(encode(valid))
    for _ in range(rng.randrange(1, 4)):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


CLOSES = (
    random_bytes,
    truncated,
    followed_by_more,
    huge_length,
    deeply_nested,
    wrong_array,
    wrong_extension,
    no_map,
)
ANSWERED = (
    wrong_type,
    missing_field,
    unknown_field,
    unknown_kind,
    wrong_session,
    wrong_observation,
    wrong_tick,
    replayed,
)
EITHER = (bits_flipped,)
"""Most flips make a message malformed; one in a number of an observation does not."""


class Fuzzer:
    """A bad client that connects again whenever it is disconnected."""

    def __init__(self, url: str, seed: int) -> None:
        self.url, self.rng = url, random.Random(seed)
        self.outcomes: Counter[str] = Counter()
        self._socket: ClientConnection | None = None

    def send(self, fuzz: Fuzz) -> None:
        """Send a malformed message and check the reaction of the server."""
        socket = self._connected()
        self._request += 1
        valid = {
            "kind": "observe",
            "session": "s",
            "tick": self._tick,
            "observation": SEEN,
            "request": self._request,
        }
        data = fuzz(self.rng, valid)
        try:
            socket.send(data)
            reply = decode(socket.recv(20), 2**20)
        except ConnectionClosed as closed:
            assert closed.rcvd is not None and closed.rcvd.code == 1007, closed
            assert fuzz in CLOSES + EITHER, (fuzz.__name__, data[:80], closed)
            self.outcomes[f"{fuzz.__name__}: closed"] += 1
            self._socket = None
            return
        if reply["kind"] == "error":
            assert fuzz in ANSWERED + EITHER, (fuzz.__name__, data[:80], reply)
            assert reply["code"] not in ("failed", "refused") and len(reply["message"]) < 1000, (
                reply
            )
        else:
            assert fuzz in EITHER, (fuzz.__name__, data[:80], reply)
            self.leave()  # the episode differs from now on
        self.outcomes[f"{fuzz.__name__}: {reply.get('code', 'accepted')}"] += 1
        if fuzz in EITHER:
            self.leave()  # the number of the request may have been flipped to a high one

    def leave(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = None

    @property
    def refused(self) -> int:
        return sum(
            count for outcome, count in self.outcomes.items() if not outcome.endswith("accepted")
        )

    def _connected(self) -> ClientConnection:
        if self._socket is None:
            self._socket = raw(self.url)
            assert decode(self._socket.recv(20), 2**20)["kind"] == "metadata"
            self._request, self._tick = 1, 1
            first = {
                "kind": "observe",
                "session": "s",
                "tick": 0,
                "observation": SEEN,
                "request": 1,
            }
            for request in ({"kind": "open", "session": "s", "seed": 1, "request": 0}, first):
                self._socket.send(encode(request))
                assert decode(self._socket.recv(20), 2**20)["kind"] in ("opened", "observed")
        return self._socket


def fuzz(url: str, messages: int, seed: int) -> Fuzzer:
    """Send random malformed messages, of each kind at least one; return the client."""
    fuzzer = Fuzzer(url, seed)
    kinds = (*CLOSES, *ANSWERED, *ANSWERED, *EITHER)
    for _ in range(messages):
        fuzzer.send(fuzzer.rng.choice(kinds))
    fuzzer.leave()
    assert all(any(name.startswith(kind.__name__) for name in fuzzer.outcomes) for kind in kinds)
    return fuzzer
