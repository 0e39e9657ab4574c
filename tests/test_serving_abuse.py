"""Whatever a client does, it loses its own sessions and nothing else: a robot that plays beside it never notices."""

from __future__ import annotations

import os
import random
import socket
import statistics
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from chameleon_client import Client, ConnectionLost, ServerError
from chameleon_client.wire import decode, encode
from chameleon_policy.policy import VisuomotorPolicy
from chameleon_policy.serve import Settings, running_server
from examples import STATE_FEATURES, make_policy
from serving_examples import episode, eventually, health, robots, server_process

SOAK_SECONDS = float(os.environ.get("CHAMELEON_SOAK_SECONDS", "600"))
MALFORMED = 12_000
"""Messages of the long fuzz test; at least 10,000 of them have to be refused."""
SEEN = episode(STATE_FEATURES, 2, seed=77)[0]
Fuzz = Callable[[random.Random, dict[str, Any]], bytes]


@pytest.fixture(scope="module")
def policy() -> VisuomotorPolicy:
    return make_policy().eval()


@pytest.fixture(scope="module")
def url(policy) -> Iterator[str]:
    with running_server(policy, Settings(port=0, close_seconds=0.5)) as where:
        yield where


def raw(url: str, **options: Any) -> ClientConnection:
    """A websocket without our client around it."""
    return connect(url, compression=None, close_timeout=5, **options).__enter__()


# What bad clients send: `valid` is a request that would be accepted, with a number that is next in line


def random_bytes(rng: random.Random, valid: dict[str, Any]) -> bytes:
    return bytes([rng.choice([0xC1, 0xD4, 0xDF, 0x93, 0xFF])]) + rng.randbytes(rng.randrange(200))


def truncated(rng: random.Random, valid: dict[str, Any]) -> bytes:
    data = encode(valid)
    return data[: rng.randrange(len(data))]


def followed_by_more(rng: random.Random, valid: dict[str, Any]) -> bytes:
    return encode(valid) + rng.randbytes(1 + rng.randrange(8))


def huge_length(rng: random.Random, valid: dict[str, Any]) -> bytes:
    head = rng.choice([b"\xdd", b"\xdf", b"\xdb", b"\xc6", b"\xc9"])
    return b"\x82\xa4kind\xa3act\xa7request" + head + struct.pack(">I", rng.randrange(2**20, 2**32)) + rng.randbytes(9)


def deeply_nested(rng: random.Random, valid: dict[str, Any]) -> bytes:
    return b"\x81\xa4kind" + rng.choice([b"\x91", b"\x81\xa1a"]) * rng.randrange(1100, 20_000) + b"\xc0"


def wrong_array(rng: random.Random, valid: dict[str, Any]) -> bytes:
    """A dtype, rank or size that does not fit the bytes."""
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
    return encode({**valid, "tick": msgpack.ExtType(rng.choice([0, 2, 3, 77, 127]), rng.randbytes(8))})


def no_map(rng: random.Random, valid: dict[str, Any]) -> bytes:
    return msgpack.packb(rng.choice([None, 1, "open", [1, 2], 2.5, True, {1: 2}, {b"kind": 1}]))


STRANGE = [None, True, -1, 2**64 - 1, 1.5, float("nan"), "", "\0", "x" * 3000, b"bytes", [], [[]], {}, {"a": {}}, [0] * 64]


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
    return encode({**valid, "kind": rng.choice(["reset", "Observe", "observe ", "", "__init__", "shutdown", "x" * 1000])})


def wrong_session(rng: random.Random, valid: dict[str, Any]) -> bytes:
    return encode({**valid, "session": rng.choice(["episode-0", "episode-1", "nobody", "\ud7ff", "s" * 64])})


def wrong_observation(rng: random.Random, valid: dict[str, Any]) -> bytes:
    """Arrays, but none that this policy can see."""
    name = rng.choice(["proprioception", "objects"])
    good = valid["observation"][name]
    bad = rng.choice(
        [
            np.full_like(good, np.nan), np.full_like(good, -np.inf), good.astype(np.float64) * 1e300, good[:-1], good[None],
            good.ravel()[:0], np.zeros((64, 64), np.uint8), good.sum(), np.zeros((0, 64)),
        ]
    )  # fmt: skip
    images = {"images": {"third": np.zeros((8, 8, 3), np.uint8)}} if rng.random() < 0.2 else {}
    return encode({**valid, "observation": {**valid["observation"], name: np.asarray(bad), **images}})


def wrong_tick(rng: random.Random, valid: dict[str, Any]) -> bytes:
    return encode({**valid, "tick": rng.choice([valid["tick"] + 1, valid["tick"] + 9, 2**63 - 1])})


def replayed(rng: random.Random, valid: dict[str, Any]) -> bytes:
    return encode({**valid, "request": rng.randrange(2)})  # that of `open`, or of the first observation


def bits_flipped(rng: random.Random, valid: dict[str, Any]) -> bytes:
    data = bytearray(encode(valid))
    for _ in range(rng.randrange(1, 4)):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


CLOSES = (random_bytes, truncated, followed_by_more, huge_length, deeply_nested, wrong_array, wrong_extension, no_map)
ANSWERED = (
    wrong_type, missing_field, unknown_field, unknown_kind, wrong_session, wrong_observation, wrong_tick, replayed
)  # fmt: skip
EITHER = (bits_flipped,)
"""Most flips are noticed; one in a number of an observation makes another observation."""


class Fuzzer:
    """One bad client, which comes back each time it is thrown out."""

    def __init__(self, url: str, seed: int) -> None:
        self.url, self.rng = url, random.Random(seed)
        self.outcomes: Counter[str] = Counter()
        self._socket: ClientConnection | None = None

    def send(self, fuzz: Fuzz) -> None:
        """One message, and what became of it."""
        socket = self._connected()
        self._request += 1
        valid = {"kind": "observe", "session": "s", "tick": self._tick, "observation": SEEN, "request": self._request}
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
            assert reply["code"] not in ("failed", "refused") and len(reply["message"]) < 1000, reply
        else:
            assert fuzz in EITHER, (fuzz.__name__, data[:80], reply)
            self.leave()  # this episode is another one now
        self.outcomes[f"{fuzz.__name__}: {reply.get('code', 'accepted')}"] += 1
        if fuzz in EITHER:
            self.leave()  # the number of the request may have been flipped to a high one

    def leave(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = None

    @property
    def refused(self) -> int:
        return sum(count for outcome, count in self.outcomes.items() if not outcome.endswith("accepted"))

    def _connected(self) -> ClientConnection:
        if self._socket is None:
            self._socket = raw(self.url)
            assert decode(self._socket.recv(20), 2**20)["kind"] == "metadata"
            self._request, self._tick = 1, 1
            first = {"kind": "observe", "session": "s", "tick": 0, "observation": SEEN, "request": 1}
            for request in ({"kind": "open", "session": "s", "seed": 1, "request": 0}, first):
                self._socket.send(encode(request))
                assert decode(self._socket.recv(20), 2**20)["kind"] in ("opened", "observed")
        return self._socket


def fuzz(url: str, messages: int, seed: int) -> Fuzzer:
    fuzzer = Fuzzer(url, seed)
    kinds = (*CLOSES, *ANSWERED, *ANSWERED, *EITHER)
    for _ in range(messages):
        fuzzer.send(fuzzer.rng.choice(kinds))
    fuzzer.leave()
    assert all(any(name.startswith(kind.__name__) for name in fuzzer.outcomes) for kind in kinds)
    return fuzzer


def test_malformed_messages(policy, url) -> None:
    with robots(policy, url):
        fuzzer = fuzz(url, 600, seed=0)
        assert fuzzer.refused > 500
    eventually(lambda: health(url)["sessions"] == health(url)["connections"] == 0)


@pytest.mark.slow
def test_ten_thousand_malformed_messages(policy, url) -> None:
    with robots(policy, url, count=2) as playing:
        fuzzer = fuzz(url, MALFORMED, seed=1)
    print(f"\n{fuzzer.refused} of {MALFORMED} refused beside {sum(robot.episodes for robot in playing)} episodes:")
    print("\n".join(f"  {count:5d} {outcome}" for outcome, count in sorted(fuzzer.outcomes.items())))
    assert fuzzer.refused >= 10_000
    eventually(lambda: health(url)["sessions"] == health(url)["connections"] == 0)


def test_what_is_no_websocket_at_all(policy, url) -> None:
    """Bytes on the port, handshakes that stop, frames against the protocol."""
    rng = random.Random(2)
    host, _, port = url.removeprefix("ws://").partition(":")
    handshake = (
        f"GET / HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    ).encode()
    unmasked, reserved = b"\x82\x05hello", b"\xf2\x85\0\0\0\0hello"
    endless = b"\x82\xff\x7f\xff\xff\xff\xff\xff\xff\xff\0\0\0\0"
    text, lost = b"\x81\x82\0\0\0\0\xff\xfe", b"\x80\x81\0\0\0\0x"
    half_open = []
    with robots(policy, url):
        for number in range(60):
            knock = socket.create_connection((host, int(port)))
            frame = rng.choice([unmasked, reserved, endless, text, lost, rng.randbytes(300)])
            whole = handshake + frame
            sent = [
                rng.randbytes(rng.randrange(1, 4000)),
                whole,
                whole,
                handshake[: rng.randrange(len(handshake))],
                b"GET " * 9999,
            ]
            with suppress(ConnectionError):
                knock.sendall(sent[number % len(sent)])
            if number % 7:
                knock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # gone without goodbye
                knock.close()
            else:
                half_open.append(knock)
        assert health(url)["status"] == "ok"
    for knock in half_open:
        knock.close()
    eventually(lambda: health(url)["sessions"] == health(url)["connections"] == 0)


def test_a_hundred_megabytes_are_refused_while_they_arrive(policy, tmp_path: Path) -> None:
    with server_process(policy, tmp_path) as server, robots(policy, server.url):
        with Client(server.url) as client:
            client.open()
            before = server.memory()
            server.forget_peak()
            data = bytes(100_000_000)
            for message in (data, (data[:50_000] for _ in range(2000))):  # in one piece, and in many
                bad = raw(server.url)
                bad.recv(20)
                with pytest.raises(ConnectionClosed) as closed:
                    bad.send(message)
                    bad.recv(20)
                bad.close()
                assert closed.value.rcvd is None or closed.value.rcvd.code == 1009
        assert server.memory("VmHWM") - before < 20
        assert health(server.url)["status"] == "ok"


def test_who_disconnects_in_the_middle_loses_only_its_own(policy, url) -> None:
    with robots(policy, url, count=3):
        for number in range(30):
            client = Client(url)
            sessions = [client.open() for _ in range(4)]
            futures = [session.observe_soon(**SEEN) for session in sessions] + [session.act_soon() for session in sessions]
            gone = client._socket.socket
            gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            gone.shutdown(socket.SHUT_RDWR if number % 2 else socket.SHUT_WR)
            client.close()
            for future in futures:
                assert future.exception(20) is None or isinstance(future.exception(), ConnectionLost)
    eventually(lambda: health(url)["sessions"] == health(url)["connections"] == 0)


def test_who_asks_without_end_and_never_listens_is_dropped(policy) -> None:
    settings = Settings(port=0, send_seconds=0.5, close_seconds=0.2)
    with running_server(policy, settings) as url, robots(policy, url):
        host, _, port = url.removeprefix("ws://").partition(":")
        deaf = socket.socket()
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect((host, int(port)))
        bad = raw(url, sock=deaf, max_queue=1, ping_interval=None)
        with pytest.raises((ConnectionClosed, OSError)):
            for number in range(10**6):
                bad.send(encode({"kind": "x" * 1000, "request": number}))
        eventually(lambda: health(url)["connections"] == 1)  # the robot's


def test_who_asks_for_much_at_once_waits_for_itself(policy, url) -> None:
    """Nothing more is read from a client that has its share of requests waiting; all are answered in the end."""
    with robots(policy, url), Client(url, timeout=60) as greedy:
        sessions = [greedy.open(seed=1) for _ in range(3)]
        futures = [session.observe_soon(**SEEN) for _ in range(60) for session in sessions]
        assert sorted(future.result(60) for future in futures) == sorted(list(range(1, 61)) * 3)


# The soak


def misbehave(url: str, seed: int, enough: threading.Event, done: Counter[str]) -> None:
    """One bad client after another."""
    rng = random.Random(seed)
    forgotten: list[Client] = []

    def garbage() -> None:
        fuzzer = Fuzzer(url, rng.randrange(2**30))
        for _ in range(20):
            fuzzer.send(rng.choice((*CLOSES, *ANSWERED, *EITHER)))
        fuzzer.leave()

    def disconnects() -> None:
        client = Client(url)
        client.open().observe_soon(**SEEN)
        client._socket.socket.shutdown(socket.SHUT_RDWR)
        client.close()

    def never_closes() -> None:
        forgotten.append(Client(url))
        forgotten[-1].open().observe(**SEEN)
        if len(forgotten) > 3:
            forgotten.pop(0).close()  # long since thrown out

    def too_much() -> None:
        bad = raw(url)
        with suppress(ConnectionClosed):
            bad.send(bytes(2_000_000))
            bad.recv(20)
        bad.close()

    deeds = (garbage, disconnects, never_closes, too_much)
    while not enough.is_set():
        deed = rng.choice(deeds)
        try:
            deed()
            done[deed.__name__] += 1
        except (ServerError, ConnectionLost) as error:  # no session or connection left for the likes of them
            assert "in use" in str(error), error
            done["turned away"] += 1
        enough.wait(0.05)
    for client in forgotten:
        client.close()


@pytest.mark.slow
def test_memory_stays_flat_for_as_long_as_it_serves(policy, tmp_path: Path) -> None:
    """Good and bad clients for CHAMELEON_SOAK_SECONDS (default: 10 minutes); the server's memory and files do not grow."""
    enough, done = threading.Event(), Counter[str]()
    with server_process(policy, tmp_path, idle_seconds=2.0, close_seconds=0.5) as server:
        files, samples = server.files(), []
        with robots(policy, server.url, count=4) as playing:
            bad = threading.Thread(target=misbehave, args=(server.url, 5, enough, done))
            bad.start()
            end = time.monotonic() + SOAK_SECONDS
            while time.monotonic() < end:
                time.sleep(min(1.0, SOAK_SECONDS / 60))
                samples.append(server.memory())
                assert bad.is_alive() and all(robot.is_alive() for robot in playing)
            enough.set()
            bad.join()
        eventually(lambda: health(server.url)["sessions"] == health(server.url)["connections"] == 0)
        eventually(lambda: server.files() <= files + 2)  # the question itself is a connection
        served = health(server.url)
    fifth = len(samples) // 5
    early, late = statistics.median(samples[fifth : 2 * fifth]), statistics.median(samples[-fifth:])
    print(f"\n{SOAK_SECONDS:g} s: {served['ticks']} ticks, {served['chunks']} chunks, {dict(done)}")
    print(
        f"memory {early:.1f} MiB in the second fifth, {late:.1f} MiB in the last, {min(samples):.1f} to {max(samples):.1f}"
    )
    assert late - early < 4
