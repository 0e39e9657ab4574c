"""Every client gets the policy's actions in process, whatever other clients send."""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
import torch
from websockets.sync.server import ServerConnection
from websockets.sync.server import serve as listen

from chameleon_client import Client, ConnectionLost, ServerError, Timeout
from chameleon_client.wire import decode, encode
from chameleon_policy.baselines import METHODS, load_policy
from chameleon_policy.policy import VisuomotorPolicy
from chameleon_policy.serve import ServerSettings, running_server
from chameleon_policy.serve.engine import Engine
from chameleon_policy.serve.memories import Memories
from chameleon_policy.serve.requests import Act, Observe, Open, Request
from chameleon_policy.serve.server import Server
from chameleon_policy.serve.sessions import PendingRequest, Reply, Session
from examples import IMAGE_FEATURES, STATE_FEATURES, make_policy, nano
from serving_examples import (
    assert_close,
    assert_same,
    episode,
    health,
    in_process,
    over_the_network,
)

ANY_PORT = ServerSettings(port=0)


def ignore(reply: Reply) -> None:
    """Do nothing with a reply."""


@pytest.fixture(scope="module")
def policy() -> VisuomotorPolicy:
    return make_policy().eval()


@pytest.fixture(scope="module")
def url(policy) -> Iterator[str]:
    with running_server(policy, ANY_PORT) as where:
        yield where


@pytest.fixture
def client(url) -> Iterator[Client]:
    with Client(url) as connected:
        yield connected


# The same actions as in process


@pytest.mark.parametrize("method", METHODS)
def test_one_client_gets_the_actions_of_the_policy_in_process(method: str) -> None:
    torch.manual_seed(1)
    policy = METHODS[method](nano(), STATE_FEATURES).eval()
    ticks = episode(STATE_FEATURES, 7, seed=3)
    with running_server(policy, ANY_PORT) as url, Client(url) as client:
        for seed in (0, 2**63 - 1):
            assert_same(
                over_the_network(client.open(seed=seed), ticks), in_process(policy, ticks, seed)
            )


def test_images_and_instructions() -> None:
    policy = make_policy(IMAGE_FEATURES).eval()
    ticks = episode(IMAGE_FEATURES, 3, seed=5)
    texts = {"": torch.zeros(6), "wipe the plate": torch.linspace(-1, 1, 6)}
    with running_server(policy, ANY_PORT, embed=texts.__getitem__) as url, Client(url) as client:
        assert (
            client.metadata.views == {"third": (64, 96), "wrist": (64, 64)}
            and client.metadata.language
        )
        instructed = over_the_network(client.open(seed=1, instruction="wipe the plate"), ticks)
        plain = over_the_network(client.open(seed=1), ticks)
    assert_same(instructed, in_process(policy, ticks, 1, instruction=texts["wipe the plate"]))
    assert_same(plain, in_process(policy, ticks, 1, instruction=texts[""]))
    assert np.abs(instructed[-1] - plain[-1]).max() > 1e-4


def test_the_shipped_policy() -> None:
    policy = load_policy("camo-small").float()
    ticks = episode(policy.features, 3, seed=2)
    with running_server(policy, ANY_PORT, name="camo-small") as url, Client(url) as client:
        assert (client.metadata.policy, client.metadata.executed) == ("camo-small", policy.executed)
        assert_same(
            over_the_network(client.open(seed=9), ticks, steps=None),
            in_process(policy, ticks, 9, steps=None),
        )


def test_sixteen_clients_with_interleaved_episodes_never_share_memory(policy) -> None:
    lengths = [5 + number % 7 for number in range(16)]
    episodes = [
        episode(STATE_FEATURES, length, seed=number) for number, length in enumerate(lengths)
    ]
    alone = [in_process(policy, ticks, seed) for seed, ticks in enumerate(episodes)]
    together = threading.Barrier(16, timeout=60)

    def play(number: int) -> list[list[np.ndarray]]:
        with Client(url, timeout=60) as client:
            together.wait()
            # Twice on one connection, the second time in a slot that another session may have used.
            return [over_the_network(client.open(seed=number), episodes[number]) for _ in range(2)]

    settings = ServerSettings(port=0, max_sessions_per_peer=32)
    with running_server(policy, settings) as url:
        with ThreadPoolExecutor(16) as threads:
            played = list(threads.map(play, range(16)))
        served = health(url)
    for number in range(16):
        for chunks in played[number]:
            assert_close(chunks, alone[number])
    # The comparison can tell episodes apart, and there were batches of several sessions.
    for number in range(1, 16):
        assert np.abs(alone[number][1] - alone[0][1]).max() > 1e-2
    assert served["ticks"] == 2 * sum(lengths) and served["batches"] < 2 * sum(lengths)


def test_sessions_of_one_client_and_requests_in_advance(policy, client) -> None:
    episodes = [episode(STATE_FEATURES, 4, seed=number) for number in range(3)]
    sessions = [client.open(seed=number) for number in range(3)]
    futures: list[list[Any]] = [[] for _ in sessions]
    for tick in range(4):
        for number, session in enumerate(sessions):
            session.observe_soon(**episodes[number][tick])
            if tick % 2 == 0:
                futures[number].append(session.act_soon(steps=3))
    for number in range(3):
        assert_close(
            [future.result(20) for future in futures[number]],
            in_process(policy, episodes[number], number),
        )
        assert sessions[number].ticks in (3, 4)


def test_threads_may_share_a_client(policy, client) -> None:
    episodes = [episode(STATE_FEATURES, 6, seed=number) for number in range(8)]

    def play(number: int) -> list[np.ndarray]:
        return over_the_network(client.open(seed=number), episodes[number])

    with ThreadPoolExecutor(8) as threads:
        for number, chunks in enumerate(threads.map(play, range(8))):
            assert_close(chunks, in_process(policy, episodes[number], number))


def test_without_a_seed_the_server_draws_one_and_reports_it(policy, client) -> None:
    ticks = episode(STATE_FEATURES, 3, seed=0)
    one, other = client.open(), client.open()
    assert one.seed != other.seed
    assert_same(over_the_network(one, ticks), in_process(policy, ticks, one.seed))


# Memories


def test_a_slot_is_empty_when_another_session_gets_it(policy) -> None:
    memories = Memories(policy, most=3)
    slots = [memories.take() for _ in range(3)]
    assert slots == [0, 1, 2] and len(memories) == 3
    used = policy.initial_state(3)
    for tensor in used.tensors().values():
        tensor.fill_(7)
    memories.write(slots, used)
    memories.give_back(1)
    assert memories.take() == 1
    fresh = policy.initial_state(1).tensors()
    for name, tensor in memories.state.tensors().items():
        assert torch.equal(tensor[1:2], fresh[name]), name
        assert (tensor[0] == 7).all() and (tensor[2] == 7).all(), name


def test_growing_keeps_the_memories(policy) -> None:
    memories = Memories(policy, most=5)
    for slot in range(5):
        assert memories.take() == slot
        mine = policy.initial_state(1)
        for tensor in mine.tensors().values():
            tensor.fill_(slot + 1)
        memories.write([slot], mine)
    assert len(memories) == 5
    for tensor in memories.read([1, 4]).tensors().values():
        assert (tensor[0] == 2).all() and (tensor[1] == 5).all()
    with pytest.raises(AssertionError, match="more sessions than slots"):
        memories.take()


# The engine waits for clients that come back at once


def test_the_engine_waits_only_for_clients_that_come_back_at_once(policy) -> None:
    engine = Engine(policy, max_sessions=2)
    quick, late = Session("quick"), Session("late")
    job = PendingRequest(Act(request=0, session=""), ignore)
    engine._answered, engine._finished, engine._patience = [quick, late], time.perf_counter(), 30.0
    quick.pause = 0.001
    engine.submit(late, job)
    assert late.pause == math.inf  # it has never been answered
    threading.Timer(0.2, engine.submit, (quick, job)).start()
    assert [session for session, _ in engine._next_round()] == [late, quick]
    quick.pause = math.inf  # like a robot with a control rate: waiting would never end in this test
    engine.submit(late, job)
    assert [session for session, _ in engine._next_round()] == [late]


def test_the_pause_of_a_session_is_measured(monkeypatch) -> None:
    monkeypatch.setattr(time, "perf_counter", lambda: 100.0)
    session = Session("any")
    session.note_return()
    assert session.pause == math.inf
    session.answered_at = 92.0
    session.note_return()
    assert session.pause == 8
    session.answered_at = 100.0
    session.note_return()
    assert session.pause == 4


# Refused requests


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"proprioception": np.full(5, np.nan, np.float32)},
            "proprioception: expected finite numbers, got nan",
        ),
        ({"proprioception": np.full(5, 1e300)}, "finite numbers, got inf"),
        ({"proprioception": np.zeros(4, np.float32)}, r"expected the shape \(1, 5\), got \(1, 4\)"),
        ({"objects": None}, "objects: this policy expects them"),
        ({"objects": np.zeros((4, 3), np.float32)}, r"objects: expected the shape \(1, 3, 4\)"),
        (
            {"images": {"front": np.zeros((8, 8, 3), np.uint8)}},
            r"expects 0 views \(none\), got 1 view",
        ),
    ],
)
def test_a_bad_observation_changes_nothing(
    policy, client, change: dict[str, Any], message: str
) -> None:
    ticks = episode(STATE_FEATURES, 4, seed=1)
    session = client.open(seed=4)
    chunks = over_the_network(session, ticks[:2])
    with pytest.raises(ServerError, match=message) as refused:
        session.observe(**{**ticks[2], **change})
    assert refused.value.code == "bad-observation"
    assert session.observe(**ticks[2]) == 3
    assert_same([*chunks, session.act(steps=3)], in_process(policy, ticks[:3], 4))


def test_bad_requests_fail_without_the_others_in_their_batch(policy, url, client) -> None:
    """All requests come at the same moment, so that most of them share batches."""
    ticks = episode(STATE_FEATURES, 6, seed=1)
    good, bad = [client.open(seed=seed) for seed in range(3)], client.open(seed=99)
    chunks: list[list[Any]] = [[] for _ in good]
    for tick, seen in enumerate(ticks):
        refused = [
            bad.observe_soon(**{**seen, "proprioception": np.full(5, np.inf)}),
            bad.act_soon(),
        ]
        observed = [session.observe_soon(**seen) for session in good]
        for number, session in enumerate(good):
            if tick % 2 == 0:
                chunks[number].append(session.act_soon(steps=3))
        assert [future.result(20) for future in observed] == [tick + 1] * 3
        codes = [future.exception(20).code for future in refused]
        assert codes == ["bad-observation", "nothing-observed"]
    for seed in range(3):
        assert_close([chunk.result(20) for chunk in chunks[seed]], in_process(policy, ticks, seed))


def test_a_batch_that_fails_is_computed_one_by_one(policy, monkeypatch, caplog) -> None:
    """The robot whose request fails gets the error, the others get their chunks."""
    ticks = episode(STATE_FEATURES, 1, seed=1)
    flow = policy.action_flow
    expected, condition, sizes = in_process(policy, ticks, 5), flow.condition, []

    def failing(working):
        sizes.append(len(working))
        if working.abs().max() > 1e29:
            raise RuntimeError("poisoned")
        return condition(working)

    def poisoning(batch, memory, advance=policy.advance):
        after = advance(batch, memory)
        after.working[batch.proprioception[:, 0, 0] > 99] = 1e30
        return after

    monkeypatch.setattr(flow, "condition", failing)
    monkeypatch.setattr(policy, "advance", poisoning)
    engine, good, bad = Engine(policy, max_sessions=2), Session("good"), Session("bad")

    def play(kind: type[Request], good_fields: dict, bad_fields: dict) -> list[Any]:
        """Carry out a request of each session in one round; return both replies."""
        taken = [
            (session, PendingRequest(kind(request=0, session=session.name, **fields), ignore))
            for session, fields in ((good, good_fields), (bad, bad_fields))
        ]
        replies = {id(pending): reply for pending, reply in engine._round(taken)}
        return [replies[id(pending)] for _, pending in taken]

    poison = {**ticks[0], "proprioception": np.full(5, 100, np.float32)}
    with torch.inference_mode():
        play(Open, {"seed": 5}, {"seed": 5})
        play(Observe, {"tick": 0, "observation": ticks[0]}, {"tick": 0, "observation": poison})
        chunk, refused = play(Act, {"steps": 3}, {"steps": 3})
    assert sizes == [2, 1, 1] and "one by one" in caplog.text
    assert refused["code"] == "failed" and "poisoned" not in refused["message"]
    assert_close([chunk["actions"]], expected)


def test_images_of_two_types_are_never_joined() -> None:
    """In one tensor with float images, uint8 images would become floats from 0 to 255."""
    policy = make_policy(IMAGE_FEATURES).eval()
    ticks = episode(IMAGE_FEATURES, 2, seed=5)
    as_float = [
        {**t, "images": {n: i.astype(np.float32) / 255 for n, i in t["images"].items()}}
        for t in ticks
    ]
    embedding = torch.ones(6)
    with (
        running_server(policy, ANY_PORT, embed=lambda text: embedding) as url,
        Client(url, timeout=30) as client,
    ):
        sessions = [client.open(seed=3) for _ in range(4)]
        for tick in range(2):
            kinds = (ticks, as_float) * 2
            for future in [
                s.observe_soon(**kind[tick]) for s, kind in zip(sessions, kinds, strict=True)
            ]:
                future.result(30)
        chunks = [session.act(steps=3) for session in sessions]
    for chunk, kind in zip(chunks, (ticks, as_float) * 2, strict=True):
        assert_close([chunk], in_process(policy, kind, 3, at=[1], instruction=embedding))


def test_ticks_are_observed_once_and_in_order(policy, client) -> None:
    ticks = episode(STATE_FEATURES, 3, seed=1)
    session = client.open(seed=4)
    session.observe(**ticks[0])
    for tick in (0, 2, 7):
        asked = {"kind": "observe", "session": session.name, "tick": tick, "observation": ticks[1]}
        with pytest.raises(ServerError, match=rf"tick: expected 1, .* got {tick}") as refused:
            client.wait(client.request(asked))
        assert refused.value.code == "wrong-tick"
    session.observe(**ticks[1])
    session.observe(**ticks[2])
    assert_same([session.act(steps=3)], in_process(policy, ticks, 4, at=[2]))


def test_after_a_refused_observation_the_next_one_has_its_number(client) -> None:
    ticks = episode(STATE_FEATURES, 4, seed=1)
    session = client.open(seed=4)
    broken = {**ticks[0], "proprioception": np.zeros(3)}
    futures = [session.observe_soon(**seen) for seen in (ticks[0], broken, ticks[2], ticks[3])]
    assert futures[0].result(20) == 1
    assert [future.exception(20).code for future in futures[1:]] == [
        "bad-observation",
        "wrong-tick",
        "wrong-tick",
    ]
    assert session.ticks == 1 and session.observe(**ticks[1]) == 2


@pytest.mark.parametrize(
    ("request_", "code", "message"),
    [
        (
            {"kind": "reset"},
            "bad-request",
            "kind: expected one of open, observe, act, close, resume, got 'reset'",
        ),
        ({}, "bad-request", "got nothing"),
        (
            {"kind": "act"},
            "bad-request",
            "session: expected a text of 1 to 64 characters, got nothing",
        ),
        (
            {"kind": "act", "session": "nobody"},
            "unknown-session",
            "this connection has no 'nobody'; open it first",
        ),
        (
            {"kind": "act", "session": "mine", "step": 8},
            "bad-request",
            "act: there is no field 'step'; it has request",
        ),
        (
            {"kind": "act", "session": "mine", "steps": 101},
            "bad-request",
            "from 1 to 100, or nothing (the server was started with --max-steps 100), got 101",
        ),
        ({"kind": "act", "session": "mine", "steps": True}, "bad-request", "got True"),
        ({"kind": "act", "session": "mine"}, "nothing-observed", "send an observation first"),
        ({"kind": "open", "session": "mine"}, "session-exists", "'mine' is already open"),
        ({"kind": "open", "session": "x" * 65}, "bad-request", "1 to 64 characters"),
        (
            {"kind": "open", "session": "new", "seed": -1},
            "bad-request",
            "seed: expected a whole number from 0",
        ),
        (
            {"kind": "open", "session": "new", "instruction": "wipe"},
            "bad-instruction",
            "built without language",
        ),
        (
            {"kind": "observe", "session": "mine", "tick": 0},
            "bad-request",
            "observation: expected a map, got nothing",
        ),
        (
            {"kind": "observe", "session": "mine", "tick": "0", "observation": {}},
            "bad-request",
            "tick: expected a whole",
        ),
        (
            {"kind": "observe", "session": "mine", "tick": 0, "observation": {}},
            "bad-observation",
            "expected an array, got",
        ),
        (
            {"kind": "observe", "session": "mine", "tick": 0, "observation": {"pose": 1}},
            "bad-observation",
            "there is no 'pose'",
        ),
    ],
)
def test_wrong_requests_are_answered(
    client, request_: dict[str, Any], code: str, message: str
) -> None:
    client.wait(client.request({"kind": "open", "session": "mine", "seed": 1}))
    with pytest.raises(ServerError, match=re.escape(message)) as refused:
        client.wait(client.request(request_))
    assert refused.value.code == code


def test_a_connection_cannot_reach_sessions_of_another(policy, url, client) -> None:
    ticks = episode(STATE_FEATURES, 3, seed=1)
    mine = client.open(seed=1)
    mine.observe(**ticks[0])
    with Client(url) as stranger:
        for kind in (
            {"kind": "act"},
            {"kind": "close"},
            {"kind": "observe", "tick": 1, "observation": ticks[2]},
        ):
            with pytest.raises(ServerError, match="this connection has no 'episode-0'"):
                stranger.wait(stranger.request({**kind, "session": mine.name}))
        same_name = stranger.open(seed=2)
        assert same_name.name == mine.name
        same_name.observe(**ticks[2])
    mine.observe(**ticks[1])
    mine.observe(**ticks[2])
    assert_same([mine.act(steps=3)], in_process(policy, ticks, 1, at=[2]))


def test_calls_that_do_not_wait_return_while_the_network_is_stuck() -> None:
    """With a server that never reads, images pile up, calls return at once, and closing works."""
    policy = make_policy(IMAGE_FEATURES).eval()
    greeting, over = (
        Server(policy, ANY_PORT, name="stuck", embed=lambda text: torch.zeros(6)).metadata(),
        threading.Event(),
    )

    def greet(socket: ServerConnection) -> None:
        socket.send(encode(greeting))
        asked = decode(socket.recv(), 10**6)
        socket.send(encode({"kind": "opened", "seed": 0, "ticks": 0, "request": asked["request"]}))
        over.wait()

    with (
        listen(greet, "127.0.0.1", 0, max_queue=1, max_size=None, close_timeout=1) as listener,
        ExitStack() as stack,
    ):
        stack.callback(over.set)
        threading.Thread(target=listener.serve_forever, daemon=True).start()
        client = Client(f"ws://127.0.0.1:{listener.socket.getsockname()[1]}", timeout=20)
        session = client.open()
        client.timeout = 1.0
        pictures = {
            view.name: np.zeros((2000, 1000, 3), np.uint8) for view in policy.features.views
        }
        futures = [
            session.observe_soon(proprioception=np.zeros(5), images=pictures) for _ in range(12)
        ]
        with pytest.raises(Timeout):
            client.wait(futures[0])
        client.close()
        for future in futures:
            with pytest.raises(ConnectionLost):
                future.result(5)
