"""A client that misbehaves loses its own sessions only, and does not disturb other robots."""

from __future__ import annotations

import os
import random
import socket
import statistics
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed

from chameleon_client import Client, ConnectionLost, ServerError
from chameleon_client.wire import encode
from chameleon_policy.policy import VisuomotorPolicy
from chameleon_policy.serve import ServerSettings, running_server
from examples import make_policy
from serving_examples import eventually, health, robots, server_process
from serving_fuzz import ANSWERED, CLOSES, EITHER, SEEN, Fuzzer, fuzz, raw

SOAK_SECONDS = float(os.environ.get("CHAMELEON_SOAK_SECONDS", "600"))
MALFORMED = 12_000
"""Messages of the long fuzz test; at least 10,000 of them have to be refused."""


@pytest.fixture(scope="module")
def policy() -> VisuomotorPolicy:
    return make_policy().eval()


@pytest.fixture(scope="module")
def url(policy) -> Iterator[str]:
    with running_server(policy, ServerSettings(port=0, close_seconds=0.5)) as where:
        yield where


def test_malformed_messages(policy, url) -> None:
    with robots(policy, url):
        fuzzer = fuzz(url, 600, seed=0)
        assert fuzzer.refused > 500
    eventually(lambda: health(url)["sessions"] == health(url)["connections"] == 0)


@pytest.mark.slow
def test_ten_thousand_malformed_messages(policy, url) -> None:
    with robots(policy, url, count=2) as playing:
        fuzzer = fuzz(url, MALFORMED, seed=1)
    print(
        f"\n{fuzzer.refused} of {MALFORMED} refused during "
        f"{sum(robot.episodes for robot in playing)} episodes:"
    )
    print(
        "\n".join(f"  {count:5d} {outcome}" for outcome, count in sorted(fuzzer.outcomes.items()))
    )
    assert fuzzer.refused >= 10_000
    eventually(lambda: health(url)["sessions"] == health(url)["connections"] == 0)


def test_bytes_that_are_no_websocket(policy, url) -> None:
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
            connection = socket.create_connection((host, int(port)))
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
                connection.sendall(sent[number % len(sent)])
            if number % 7:
                # without a closing handshake
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connection.close()
            else:
                half_open.append(connection)
        assert health(url)["status"] == "ok"
    for connection in half_open:
        connection.close()
    eventually(lambda: health(url)["sessions"] == health(url)["connections"] == 0)


def test_a_hundred_megabytes_are_refused_while_they_arrive(policy, tmp_path: Path) -> None:
    with server_process(policy, tmp_path) as server, robots(policy, server.url):
        with Client(server.url) as client:
            client.open()
            before = server.memory()
            server.reset_peak()
            data = bytes(100_000_000)
            # in one piece, and in many
            for message in (data, (data[:50_000] for _ in range(2000))):
                bad = raw(server.url)
                bad.recv(20)
                with pytest.raises(ConnectionClosed) as closed:
                    bad.send(message)
                    bad.recv(20)
                bad.close()
                assert closed.value.rcvd is None or closed.value.rcvd.code == 1009
        assert server.memory("VmHWM") - before < 20
        assert health(server.url)["status"] == "ok"


def test_a_client_that_disconnects_loses_only_its_own_sessions(policy, url) -> None:
    with robots(policy, url, count=3):
        for number in range(30):
            client = Client(url)
            sessions = [client.open() for _ in range(4)]
            futures = [session.observe_soon(**SEEN) for session in sessions] + [
                session.act_soon() for session in sessions
            ]
            gone = client._socket.socket
            gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            gone.shutdown(socket.SHUT_RDWR if number % 2 else socket.SHUT_WR)
            client.close()
            for future in futures:
                assert future.exception(20) is None or isinstance(
                    future.exception(), ConnectionLost
                )
    eventually(lambda: health(url)["sessions"] == health(url)["connections"] == 0)


def test_a_client_that_never_reads_is_dropped(policy) -> None:
    settings = ServerSettings(port=0, send_seconds=0.5, close_seconds=0.2)
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


def test_a_client_with_many_requests_waits_for_its_own(policy, url) -> None:
    """A client with too many waiting requests is not read from; all are answered in the end."""
    with robots(policy, url), Client(url, timeout=60) as greedy:
        sessions = [greedy.open(seed=1) for _ in range(3)]
        futures = [session.observe_soon(**SEEN) for _ in range(60) for session in sessions]
        assert sorted(future.result(60) for future in futures) == sorted(list(range(1, 61)) * 3)


# The soak


def misbehave(url: str, seed: int, enough: threading.Event, done: Counter[str]) -> None:
    """Run one bad client after another until `enough` is set."""
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
            forgotten.pop(0).close()  # the server has closed it long before

    def too_much() -> None:
        bad = raw(url)
        with suppress(ConnectionClosed):
            bad.send(bytes(2_000_000))
            bad.recv(20)
        bad.close()

    kinds = (garbage, disconnects, never_closes, too_much)
    while not enough.is_set():
        client = rng.choice(kinds)
        try:
            client()
            done[client.__name__] += 1
        except (ServerError, ConnectionLost) as error:
            # good and bad clients have all sessions or connections
            assert "in use" in str(error), error
            done["refused"] += 1
        enough.wait(0.05)
    for connection in forgotten:
        connection.close()


@pytest.mark.slow
def test_memory_and_open_files_do_not_grow(policy, tmp_path: Path) -> None:
    """The server's memory and files do not grow during CHAMELEON_SOAK_SECONDS (default: 600)."""
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
        # asking for the health is a connection, too
        eventually(lambda: server.files() <= files + 2)
        served = health(server.url)
    fifth = len(samples) // 5
    early, late = statistics.median(samples[fifth : 2 * fifth]), statistics.median(samples[-fifth:])
    print(f"\n{SOAK_SECONDS:g} s: {served['ticks']} ticks, {served['chunks']} chunks, {dict(done)}")
    print(
        f"memory {early:.1f} MiB in the second fifth, {late:.1f} MiB in the last, "
        f"{min(samples):.1f} to {max(samples):.1f}"
    )
    assert late - early < 4
