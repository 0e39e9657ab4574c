"""Encryption, limits of addresses, half-open connections, the audit log, sessions that go on."""

from __future__ import annotations

import json
import resource
import shutil
import socket
import struct
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chameleon_client import Client, ConnectionLost, ServerError
from chameleon_policy.policy import VisuomotorPolicy
from chameleon_policy.serve import ServerSettings, authentication, running_server
from chameleon_policy.serve.audit import Audit
from chameleon_policy.serve.door import HALF_OPEN, RESERVE, Guests, files_left, peer_of
from examples import STATE_FEATURES, make_policy
from serving_examples import assert_same, episode, eventually, health, in_process, server_process

TOKEN = "0123456789abcdef0123"
TICKS = episode(STATE_FEATURES, 5, seed=1)


@pytest.fixture(scope="module")
def policy() -> VisuomotorPolicy:
    return make_policy().eval()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Make a certificate for localhost, signed by itself."""
    folder = tmp_path_factory.mktemp("tls")
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate")
    files = {"tls_cert": folder / "cert.pem", "tls_key": folder / "key.pem"}
    command = ["openssl", "req", "-x509", "-nodes", "-newkey", "ec", "-days", "2"]
    command += ["-pkeyopt", "ec_paramgen_curve:prime256v1", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    command += ["-out", str(files["tls_cert"]), "-keyout", str(files["tls_key"])]
    subprocess.run(command, check=True, capture_output=True)
    return files


# Encryption


def test_an_encrypted_server(policy, certificate) -> None:
    settings = ServerSettings(host="0.0.0.0", port=0, token=TOKEN, **certificate)
    with running_server(policy, settings) as anywhere:
        url = anywhere.replace("0.0.0.0", "127.0.0.1")
        assert url.startswith("wss://")
        authority = certificate["tls_cert"]
        with Client(url, token=TOKEN, tls_ca=authority) as client:
            session = client.open(seed=3)
            session.observe(**TICKS[0])
            assert_same([session.act(steps=3)], in_process(policy, TICKS[:1], 3))
        with pytest.raises(ConnectionLost, match=r"not trusted .*--tls-ca"):
            Client(url, token=TOKEN)
        with pytest.raises(ConnectionLost, match="expects its token"):
            Client(url, token="another-token-of-20", tls_ca=authority)
        with pytest.raises(ConnectionLost):  # nothing is said without encryption
            Client(url.replace("wss", "ws"), token=TOKEN, timeout=5)


def test_a_certificate_of_another_name_is_not_trusted(policy, certificate) -> None:
    with (
        running_server(policy, ServerSettings(host="127.0.0.2", port=0, **certificate)) as url,
        pytest.raises(ConnectionLost, match="not trusted"),
    ):
        Client(url, tls_ca=certificate["tls_cert"])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"host": "0.0.0.0", "token": TOKEN}, "the token would travel as it is.*--insecure"),
        ({"tls_cert": Path("cert.pem")}, "give --tls-cert and --tls-key"),
        ({"tls_key": Path("key.pem")}, "give --tls-cert and --tls-key"),
    ],
)
def test_a_token_never_travels_as_it_is_by_mistake(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ServerSettings(**given)
    assert ServerSettings(host="0.0.0.0", token=TOKEN, insecure=True).tls() is None


def test_wrong_files_of_tls_are_named(certificate, tmp_path: Path) -> None:
    (tmp_path / "no.pem").write_text("nothing")
    wrong = ServerSettings(tls_cert=tmp_path / "no.pem", tls_key=certificate["tls_key"])
    with pytest.raises(ValueError, match=r"no\.pem and .*key\.pem: expected a certificate"):
        wrong.tls()
    with pytest.raises(FileNotFoundError, match=r"there is no file .*missing\.pem"):
        ServerSettings(tls_cert=tmp_path / "missing.pem", tls_key=certificate["tls_key"]).tls()
    with pytest.raises(ValueError, match=r"tls_ca: .*no\.pem is no file of certificates"):
        Client("wss://127.0.0.1:9", tls_ca=tmp_path / "no.pem")
    with pytest.raises(ValueError, match="tls_ca is for addresses that begin with wss://"):
        Client("ws://127.0.0.1:9", tls_ca=certificate["tls_cert"])


def test_tokens_are_compared_in_constant_time(monkeypatch) -> None:
    compared = []
    compare = authentication.hmac.compare_digest

    def noted(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return compare(one, other)

    monkeypatch.setattr(authentication.hmac, "compare_digest", noted)
    for header in (f"Bearer {TOKEN}", f"Bearer x{TOKEN[1:]}", "Bearer x", None, f"Basic {TOKEN}"):
        assert authentication.is_authorised(header, TOKEN) == (header == f"Bearer {TOKEN}")
    assert len(compared) == 5 and all(other == TOKEN.encode() for _, other in compared)


# Limits of an address


def from_address(address: str, url: str) -> Client:
    """Connect from another address of this machine."""
    host, _, port = url.removeprefix("ws://").partition(":")
    plain = socket.create_connection((host, int(port)), source_address=(address, 0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "create_connection", lambda *given, **options: plain)
        return Client(url)


def test_limits_of_one_address(policy) -> None:
    settings = ServerSettings(port=0, max_connections_per_peer=2, max_sessions_per_peer=3)
    with running_server(policy, settings) as url, Client(url) as one, Client(url) as two:
        for client in (one, one, two):
            client.open()
        with pytest.raises(ServerError, match="your address has 3 sessions") as refused:
            two.open()
        assert refused.value.code == "too-many-sessions"
        with pytest.raises(ConnectionLost, match="your address has 2 connections"):
            Client(url)
        with from_address("127.0.0.2", url) as other:
            other.open()


def test_addresses_are_counted_as_a_stranger_can_have_them() -> None:
    for address, peer in (
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("::1", "::1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
    ):
        assert peer_of((address, 1234)) == peer


# Half-open connections


def test_guests_beyond_a_limit_are_not_admitted() -> None:
    refused: list[tuple[str, str]] = []
    guests = Guests(3, 2, lambda peer, reason: refused.append((peer, reason)))
    sockets = [socket.socket() for _ in range(4)]
    assert [guests.admit(each, "a") for each in sockets[:3]] == [True, True, False]
    assert guests.admit(sockets[2], "b") and not guests.admit(sockets[3], "c")
    assert refused == [
        ("a", "too many connections of this address"),
        ("c", "too many open files"),
    ]
    sockets[0].close()
    assert guests.admit(sockets[3], "c")
    for each in sockets:
        each.close()


def test_connections_stay_below_the_limit_of_files(monkeypatch) -> None:
    before = files_left()
    held = [socket.socket() for _ in range(5)]
    assert before - files_left() == 5
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (RESERVE + 5, RESERVE + 5))
    assert files_left() == 1
    for each in held:
        each.close()


def half_open(url: str, count: int) -> list[socket.socket]:
    """Hold connections that never finish their handshake."""
    host, _, port = url.removeprefix("ws://").partition(":")
    opened = []
    for _ in range(count):
        connection = socket.create_connection((host, int(port)), source_address=("127.0.0.2", 0))
        connection.sendall(b"GET / HTTP/1.1\r\n")
        opened.append(connection)
    return opened


def is_closed(connection: socket.socket, seconds: float) -> bool:
    """Return whether the server closes a connection within so many seconds."""
    connection.settimeout(seconds)
    try:
        while connection.recv(1000):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        pass
    return True


def test_half_open_connections_neither_fill_the_files_nor_the_log(policy, caplog) -> None:
    settings = ServerSettings(port=0, max_connections_per_peer=4, handshake_seconds=600)
    with running_server(policy, settings) as url, Client(url) as robot:
        session = robot.open(seed=3)
        held = half_open(url, 24 + HALF_OPEN)
        session.observe(**TICKS[0])
        # the first ones were let in, and the others closed at once
        assert all(is_closed(connection, 60) for connection in held[4 + HALF_OPEN :])
        assert not any(is_closed(connection, 0.001) for connection in held[: 4 + HALF_OPEN])
        eventually(lambda: "refused" in caplog.text)
        for connection in held:
            connection.close()
    said = [record.getMessage() for record in caplog.records]
    assert all("refused: too many connections of this address" in line for line in said)
    # a line at the first refusal, and one at the end for those after it
    assert sum(int(line.split()[0]) for line in said) == 20 and len(said) <= 2


def test_half_open_connections_end_when_their_time_is_over(policy) -> None:
    with running_server(policy, ServerSettings(port=0, handshake_seconds=0.2)) as url:
        (held,) = half_open(url, 1)
        assert is_closed(held, 60)
        held.close()


# The audit log


def test_the_audit_log(policy, tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    settings = ServerSettings(port=0, token=TOKEN, audit=path, max_sessions_per_connection=1)
    with running_server(policy, settings) as url:
        with Client(url, token=TOKEN) as client:
            with client.open() as session:
                session.observe(**TICKS[0])
            client.open()
        for _ in range(3):
            with pytest.raises(ConnectionLost):
                Client(url, token="another-token-of-20")
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    assert all(entry.pop("time") > 1e9 for entry in entries)
    peer = {"peer": "127.0.0.1"}
    assert entries == [
        {"event": "open", **peer, "session": "episode-0"},
        {"event": "close", **peer, "session": "episode-0", "reason": "by its client"},
        {"event": "open", **peer, "session": "episode-1"},
        {"event": "close", **peer, "session": "episode-1", "reason": "its client left"},
        {"event": "refuse", **peer, "reason": "wrong token", "count": 3},
    ]
    assert TOKEN not in path.read_text()


def test_refusals_are_written_down_once_a_minute(tmp_path: Path, caplog) -> None:
    now = [1000.0]
    audit = Audit(tmp_path / "audit.jsonl", now=lambda: now[0])
    counts = []
    for seconds in (0, 1, 58, 2):
        now[0] += seconds
        for number in range(2000):
            audit.refuse(f"10.0.{number % 250}.{number // 250}", "no token")
        audit.report()
        counts.append(len(caplog.records))
    assert counts == [1, 1, 1, 2]
    assert "6000 connections were refused: no token (6000)" in caplog.records[-1].getMessage()
    entries = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert len(entries) == 2 * 1001  # the rest counts as others
    assert sum(entry["count"] for entry in entries) == 8000
    audit.close()


def test_an_audit_log_that_cannot_be_written_stops_nobody(policy, tmp_path: Path, caplog) -> None:
    with (
        pytest.raises(OSError),
        running_server(policy, ServerSettings(port=0, audit=tmp_path / "missing" / "audit.jsonl")),
    ):
        pass
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full")
    with running_server(policy, ServerSettings(port=0, audit=full)) as url, Client(url) as client:
        client.open().observe(**TICKS[0])
    assert "--audit" in caplog.text


# Sessions that go on after a lost connection


def cut(client: Client) -> None:
    """Lose a connection, as when a cable is pulled out."""
    gone = client._socket.socket
    gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    gone.shutdown(socket.SHUT_RDWR)
    client.close()


@pytest.fixture
def url(policy) -> Iterator[str]:
    settings = ServerSettings(port=0, max_sessions=3, max_sessions_per_connection=2)
    with running_server(policy, settings) as where:
        yield where


def test_a_session_goes_on_after_a_lost_connection(policy, url) -> None:
    client = Client(url)
    session = client.open(seed=7, keep=True)
    chunks = []
    for tick in TICKS[:3]:
        session.observe(**tick)
    chunks.append(session.act(steps=3))
    cut(client)
    eventually(lambda: health(url)["connections"] == 0)
    assert health(url)["sessions"] == 1
    with client.again() as new:
        resumed = new.resume(session)
        assert (resumed.ticks, resumed.seed) == (3, 7)
        for tick in TICKS[3:]:
            resumed.observe(**tick)
        chunks.append(resumed.act(steps=3))
        assert_same(chunks, in_process(policy, TICKS, 7, at=[2, 4]))
        resumed.close()
    eventually(lambda: health(url)["sessions"] == 0)


def test_a_session_moves_from_a_connection_whose_loss_was_not_noticed(policy, url) -> None:
    with Client(url) as old, Client(url) as new:
        session = old.open(seed=7, keep=True)
        session.observe(**TICKS[0])
        resumed = new.resume(session)
        assert resumed.observe(**TICKS[1]) == 2
        with pytest.raises(ServerError, match="has no"):
            session.act()
        assert health(url)["sessions"] == 1


def test_only_the_secret_continues_a_session(policy, url) -> None:
    client = Client(url)
    plain, kept = client.open(seed=1), client.open(seed=2, keep=True)
    assert plain.secret is None and len(kept.secret) >= 43  # 256 bits
    cut(client)
    eventually(lambda: health(url)["connections"] == 0)
    with Client(url) as stranger:
        for guess in (plain.name, kept.name, "", "0", kept.secret[:-1], kept.secret.swapcase()):
            with pytest.raises(ServerError, match="no session with this secret") as refused:
                stranger.wait(
                    stranger.request({"kind": "resume", "session": "mine", "secret": guess})
                )
            assert refused.value.code == "unknown-session"
        with pytest.raises(ServerError, match="secret: expected") as refused:
            stranger.wait(stranger.request({"kind": "resume", "session": "mine", "secret": 7}))
        with pytest.raises(ValueError, match="keep=True"):
            stranger.resume(plain)


def test_kept_sessions_are_closed_in_time_and_when_others_need_their_place(policy) -> None:
    settings = ServerSettings(
        port=0, max_sessions=2, max_sessions_per_connection=2, grace_seconds=0.5, idle_seconds=1.0
    )
    with running_server(policy, settings) as url:
        client = Client(url)
        session = client.open(keep=True)
        session.observe(**TICKS[0])
        cut(client)
        eventually(lambda: health(url)["sessions"] == 0)
        with Client(url) as late, pytest.raises(ServerError, match=r"away for more than 0\.5 s"):
            late.resume(session)
    settings = ServerSettings(port=0, max_sessions=2, max_sessions_per_connection=2)
    with running_server(policy, settings) as url:
        client = Client(url)
        first, second = client.open(seed=1, keep=True), client.open(seed=2, keep=True)
        for each in (first, second):
            each.observe(**TICKS[0])
        cut(client)
        eventually(lambda: health(url)["connections"] == 0)
        with Client(url) as other:
            fresh = other.open(seed=3)  # in the place of the one that was kept first
            fresh.observe(**TICKS[0])
            assert_same([fresh.act(steps=3)], in_process(policy, TICKS[:1], 3))
            with pytest.raises(ServerError, match="no session with this secret"):
                other.resume(first)
            resumed = other.resume(second)
            assert_same([resumed.act(steps=3)], in_process(policy, TICKS[:1], 2))


def test_a_client_that_says_goodbye_or_sends_nonsense_keeps_nothing(url) -> None:
    with Client(url) as client:
        client.open(keep=True)
    eventually(lambda: health(url)["sessions"] == 0)
    client = Client(url)
    client.open(keep=True)
    client._socket.send(b"\xc1")
    eventually(lambda: health(url)["sessions"] == health(url)["connections"] == 0)
    client.close()


# Many clients, slow ones


@pytest.mark.slow
def test_six_hundred_half_open_connections_against_256_files(policy, tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))  # the server's; ours is raised again
    try:
        with server_process(policy, tmp_path, max_connections_per_peer=400) as server:
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
            with Client(server.url) as robot:
                session = robot.open(seed=1)
                held = half_open(server.url, 600)
                for number in range(10):
                    session.observe(**TICKS[number % 5])
                assert server.files() < 256
                for connection in held:
                    connection.close()
                eventually(lambda: server.files() < 40)
                Client(server.url).close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.slow
def test_ten_thousand_sessions_and_two_thousand_connections(policy, tmp_path: Path) -> None:
    with server_process(policy, tmp_path, max_connections_per_peer=64) as server:
        with Client(server.url) as robot:
            for number in range(10_000):
                with robot.open(seed=number) as session:
                    if number % 100 == 0:
                        session.observe(**TICKS[0])
                if number == 1000:
                    before = server.memory()
            for _ in range(2_000):
                client = Client(server.url)
                client.open(keep=True)
                cut(client)
            seen = np.array([robot.open(seed=1).observe(**TICKS[0])])
            assert seen == 1 and server.memory() - before < 8
        eventually(lambda: health(server.url)["connections"] == 0)


@pytest.mark.slow
def test_clients_that_send_a_letter_now_and_then(policy) -> None:
    settings = ServerSettings(port=0, handshake_seconds=2.0, max_connections_per_peer=500)
    with running_server(policy, settings) as url, Client(url) as robot:
        session, held = robot.open(seed=1), half_open(url, 300)
        for number in range(20):
            for connection in held:
                with suppress(OSError):  # it is over for this one
                    connection.sendall(b"x")
            session.observe(**TICKS[number % 5])
        for connection in held:
            assert is_closed(connection, 60)
            connection.close()
        eventually(lambda: health(url)["connections"] == 1)
