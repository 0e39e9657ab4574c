"""Limits of a server, authentication, and shutdown."""

from __future__ import annotations

import re
import signal
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from chameleon_client import Client, ConnectionLost, Limits, Metadata, ServerError, Timeout
from chameleon_client.wire import DTYPES
from chameleon_policy.baselines import load_policy
from chameleon_policy.policy import VisuomotorPolicy
from chameleon_policy.serve import ServerSettings, find_token, running_server
from chameleon_policy.serve.engine import Engine
from chameleon_policy.serve.instructions import KEPT, KeptInstructions
from chameleon_policy.serve.requests import Code
from examples import IMAGE_FEATURES, STATE_FEATURES, make_policy
from serving_examples import assert_same, episode, eventually, health, in_process, server_process

ANY_PORT = ServerSettings(port=0)
PAGE = (Path(__file__).parent.parent / "docs/serving.md").read_text()


@pytest.fixture(scope="module")
def policy() -> VisuomotorPolicy:
    return make_policy().eval()


@pytest.fixture(scope="module")
def url(policy) -> Iterator[str]:
    with running_server(policy, ANY_PORT) as where:
        yield where


# Limits


def test_no_more_sessions_than_allowed(policy) -> None:
    with (
        running_server(
            policy, ServerSettings(port=0, max_sessions=3, max_sessions_per_connection=2)
        ) as url,
        Client(url) as one,
    ):
        first, _ = one.open(), one.open()
        with pytest.raises(ServerError, match="a connection may have 2 sessions"):
            one.open()
        with Client(url) as other:
            other.open()
            with pytest.raises(
                ServerError, match="all 3 sessions of this server are in use"
            ) as refused:
                other.open()
            assert refused.value.code == "too-many-sessions"
            first.close()
            other.open()
        eventually(lambda: health(url)["sessions"] == 1)


def test_no_more_connections_than_allowed(policy) -> None:
    with (
        running_server(policy, ServerSettings(port=0, max_connections=2)) as url,
        Client(url),
        Client(url),
    ):
        with pytest.raises(ConnectionLost, match="all 2 connections of this server are in use"):
            Client(url)
        assert health(url)["connections"] == 2


def test_an_idle_session_is_closed_and_then_its_connection(policy) -> None:
    with (
        running_server(policy, ServerSettings(port=0, idle_seconds=1.0)) as url,
        Client(url) as client,
    ):
        session = client.open()
        eventually(lambda: health(url)["sessions"] == 0)
        eventually(lambda: health(url)["connections"] == 0)
        with pytest.raises(ConnectionLost, match="no session for 1 s"):
            session.act()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"port": 70000}, "port: expected 0 to 65535"),
        ({"max_sessions": 0}, "max_sessions: expected a number of at least 1, got 0"),
        ({"idle_seconds": float("nan")}, "idle_seconds: expected a number"),
        ({"max_waiting": 2.5}, "max_waiting"),
        (
            {"token": "short"},
            "token: expected at least 16 .* make one with: export CHAMELEON_TOKEN=",
        ),
        ({"token": "with a space inside it"}, "without spaces"),
        (
            {"host": "0.0.0.0"},
            r"can be reached from other machines, and there is no token.*export CHAMELEON_TOKEN=",
        ),
        ({"host": ""}, "every address can be reached"),
        ({"host": "::"}, "no token"),
        ({"host": "robot.lab"}, "no token"),
    ],
)
def test_settings_are_checked(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ServerSettings(**wrong)


def test_local_addresses_need_no_token() -> None:
    for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost"):
        assert ServerSettings(host=host).token is None
    assert "0123456789abcdef" not in repr(ServerSettings(token="0123456789abcdef"))


def test_a_message_may_hold_one_observation() -> None:
    assert ANY_PORT.message_bytes(IMAGE_FEATURES) == 4 * 3 * (64 * 96 + 64 * 64) + 8 * 5 + 64 * 1024
    assert ServerSettings(max_message_bytes=5000).message_bytes(IMAGE_FEATURES) == 5000


# Authentication


def test_the_token(policy) -> None:
    token = "0123456789abcdef0123"
    settings = ServerSettings(host="0.0.0.0", port=0, token=token, insecure=True)
    with running_server(policy, settings) as anywhere:
        url = anywhere.replace("0.0.0.0", "127.0.0.1")
        with Client(url, token=token) as client:
            client.open()
        for wrong in (None, "0123456789abcdef0124", "0123456789abcdef012", ""):
            with pytest.raises(ConnectionLost, match="expects its token"):
                Client(url, token=wrong)
        for header in (f"Basic {token}", token, f"Bearer {token} x", "Bearer t\u00f6ken"):
            with (
                pytest.raises(InvalidStatus, match="401"),
                connect(url, additional_headers={"Authorization": header}),
            ):
                pass
        twice = [("Authorization", f"Bearer {token}"), ("Authorization", "Bearer x")]
        with pytest.raises(InvalidStatus, match="401"), connect(url, additional_headers=twice):
            pass
        assert health(url)["status"] == "ok"  # needs none


def test_a_token_comes_from_the_environment_or_a_file(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.delenv("CHAMELEON_TOKEN", raising=False)
    assert find_token() is None
    monkeypatch.setenv("CHAMELEON_TOKEN", " from-the-environment ")
    assert find_token() == "from-the-environment"
    (tmp_path / "token").write_text("from-a-file\n")
    assert find_token(tmp_path / "token") == "from-a-file"
    with pytest.raises(FileNotFoundError, match="--token-file: there is no file"):
        find_token(tmp_path / "other")


def test_web_pages_are_refused(url) -> None:
    with pytest.raises(InvalidStatus, match="403"), connect(url, origin="https://example.com"):
        pass


def test_health_and_plain_http(url) -> None:
    assert set(health(url)) == {
        "status",
        "policy",
        "sessions",
        "connections",
        "ticks",
        "chunks",
        "batches",
        "uptime_s",
    }
    for path, status in (("/", 426), ("/other", 404)):
        with pytest.raises(urllib.error.HTTPError) as answer:
            urllib.request.urlopen(url.replace("ws://", "http://") + path, timeout=10)
        assert answer.value.code == status


# Shutdown


def test_waiting_calls_fail_when_the_connection_dies(policy, monkeypatch) -> None:
    """All waiting calls fail at once, and those that come later too."""
    held, act = threading.Event(), Engine._act
    with running_server(policy, ANY_PORT) as url, monkeypatch.context() as patch:
        patch.setattr(Engine, "_act", lambda *given: (held.wait(20), act(*given))[1])
        client = Client(url, timeout=20)
        session = client.open(seed=1)
        session.observe(**episode(STATE_FEATURES, 1, seed=1)[0])
        client.timeout = 0.2
        waiting = [session.act_soon(), session.act_soon()]
        with pytest.raises(Timeout, match=r"no reply within 0\.2 s"):
            session.act()
        client._socket.socket.shutdown(socket.SHUT_RDWR)  # as a cable that is pulled
        for future in waiting:
            assert isinstance(future.exception(20), ConnectionLost)
        with pytest.raises(ConnectionLost, match="every memory opened on it"):
            session.act()
        held.set()
        eventually(lambda: health(url)["sessions"] == 0)
        client.close()


def test_an_address_without_a_server_is_reported() -> None:
    with pytest.raises(ConnectionLost, match="is the server running"):
        Client("ws://127.0.0.1:9")


def test_a_taken_port_is_named(policy, url) -> None:
    taken = int(url.rpartition(":")[2])
    with (
        pytest.raises(OSError, match=f"cannot listen on 127.0.0.1, port {taken}"),
        running_server(policy, ServerSettings(port=taken)),
    ):
        pass


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_server_cleanly(policy, tmp_path: Path, number: signal.Signals) -> None:
    with server_process(policy, tmp_path) as server:
        client = Client(server.url)
        session = client.open(seed=1)
        ticks = episode(STATE_FEATURES, 1, seed=1)
        session.observe(**ticks[0])
        assert_same([session.act(steps=3)], in_process(policy, ticks, 1))
        server.process.send_signal(number)
        with pytest.raises(ConnectionLost, match=r"1001.*the server was stopped"):
            while True:
                session.act(steps=1)
        rest, _ = server.process.communicate(timeout=20)
        assert server.process.returncode == 0
        assert re.search(r"Stopped after .* s: 1 ticks and \d+ chunks were served", rest)
        client.close()
        with socket.socket() as again:  # the port is free
            again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            again.bind(("127.0.0.1", int(server.url.rpartition(":")[2])))


def test_the_running_round_is_answered_before_the_end(policy, monkeypatch) -> None:
    """A request that waits for the next round fails with the connection."""
    begun, act = threading.Event(), Engine._act

    def slow(engine, members):
        begun.set()
        eventually(lambda: engine._stopping)
        return act(engine, members)

    ticks = episode(STATE_FEATURES, 1, seed=1)
    with monkeypatch.context() as patch:
        with running_server(policy, ANY_PORT) as url:
            client = Client(url)
            session = client.open(seed=1)
            session.observe(**ticks[0])
            patch.setattr(Engine, "_act", slow)  # three Euler steps: one slice
            running, behind = session.act_soon(steps=3), session.act_soon(steps=3)
            assert begun.wait(20)
        assert_same([running.result(20)], in_process(policy, ticks, 1))
        assert isinstance(behind.exception(20), ConnectionLost)
        client.close()
    with pytest.raises((ConnectionClosed, OSError)), connect(url):
        pass


def test_a_server_ends_with_an_error_when_its_computing_thread_fails(
    policy, monkeypatch, caplog
) -> None:
    def broken(self: Engine, taken: Any) -> Any:
        raise MemoryError("no more")

    monkeypatch.setattr(Engine, "_round", broken)
    failing = pytest.raises(RuntimeError, match="the computing thread failed")
    lost = pytest.raises(ConnectionLost, match="1001")
    with failing, running_server(policy, ANY_PORT) as url, Client(url) as client, lost:
        client.open()
    assert "no more" in caplog.text


def test_a_limited_number_of_instructions_is_kept(monkeypatch) -> None:
    asked = []

    def encode(self: KeptInstructions, texts: list[str]) -> torch.Tensor:
        asked.extend(texts)
        return torch.full((1, 3), float(len(asked)))

    monkeypatch.setattr(KeptInstructions, "__init__", lambda self: setattr(self, "_cache", {}))
    monkeypatch.setattr(KeptInstructions, "_encode", encode)
    embed = KeptInstructions()
    first = embed("wipe")
    for number in range(KEPT - 1):
        embed(f"other {number}")
    # kept, and now the latest
    assert torch.equal(embed("wipe"), first) and asked.count("wipe") == 1
    embed("one more")
    embed("wipe")
    assert asked.count("wipe") == 1 and len(embed._cache) == KEPT
    embed("other 0")
    assert asked.count("other 0") == 2


def test_code_on_the_page_runs() -> None:
    policy = load_policy("camo-small").float()
    seen = episode(policy.features, 1, seed=1)[0]
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, Any] = {
        "pose": lambda: seen["proprioception"],
        "frame": seen["images"].__getitem__,
    }
    with running_server(policy, ANY_PORT) as url:
        exec(code.replace("ws://127.0.0.1:8765", url), names)
        assert health(url)["ticks"] == 8
    assert names["chunk"].shape == (8, 10)


def test_the_page_names_all_codes_dtypes_and_metadata() -> None:
    codes = re.findall(
        r"^\| `([a-z-]+)` \|", PAGE.partition("| code |")[2].partition("\n\n")[0], re.MULTILINE
    )
    assert codes == list(get_args(Code))
    dtypes = re.search(r"dtype: (.*) \|", PAGE)
    assert dtypes is not None
    assert dtypes[1] == ", ".join(f"{number} {dtype.name}" for number, dtype in enumerate(DTYPES))
    listed = set(re.findall(r"`(\w+)`", PAGE.partition("`metadata` has")[2].partition("\n\n")[0]))
    assert listed == {field.name for kind in (Metadata, Limits) for field in fields(kind)}
    settings = ServerSettings()
    assert f"{settings.idle_seconds:g} s" in PAGE and f"{settings.send_seconds:g} s" in PAGE
    one, all_clients = settings.max_sessions_per_connection, settings.max_sessions
    assert f"{one} sessions a connection, {all_clients} in all" in PAGE
