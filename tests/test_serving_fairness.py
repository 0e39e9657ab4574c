"""Nobody waits for the whole of another's work, and no number that is not finite leaves the server.

Most tests carry out the rounds of an engine by hand: their order does not depend on time.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from chameleon_client import Client, ServerError
from chameleon_policy.baselines import METHODS
from chameleon_policy.policy import VisuomotorPolicy
from chameleon_policy.serve import ServerSettings, running_server
from chameleon_policy.serve.engine import SHARE, Engine
from chameleon_policy.serve.requests import Act, Close, Observe, Open
from chameleon_policy.serve.sampling import SLICE
from chameleon_policy.serve.sessions import PendingRequest, Session
from examples import STATE_FEATURES, make_policy, nano
from serving_examples import assert_close, assert_same, episode, in_process

TICKS = episode(STATE_FEATURES, 3, seed=1)
KINDS = {kind.kind: kind for kind in (Open, Observe, Act, Close)}


@pytest.fixture(scope="module")
def policy() -> VisuomotorPolicy:
    return make_policy().eval()


class Rounds:
    """An engine whose rounds are carried out by hand, and the replies in order."""

    def __init__(self, policy: VisuomotorPolicy, *names: str) -> None:
        """Open and observe in sessions named like 10.0.0.1/0: their address and a number."""
        self.engine = Engine(policy, max_sessions=32)
        self.sessions = {name: Session(name, peer=name.partition("/")[0]) for name in names}
        self.replies: list[tuple[str, dict[str, Any]]] = []
        for seed, name in enumerate(names):
            self.ask(name, "open", seed=seed)
        self.round()
        for name in names:
            self.ask(name, "observe", tick=0, observation=TICKS[0])
        while self.engine._ready:
            self.round()
        self.replies.clear()

    def ask(self, name: str, kind: str, **fields: Any) -> None:
        request = KINDS[kind](request=0, session=name, **fields)
        done = PendingRequest(request, lambda reply: self.replies.append((name, reply)))
        self.engine.submit(self.sessions[name], done)

    def round(self) -> None:
        taken = self.engine._next_round()
        assert taken is not None
        with torch.inference_mode():
            for pending, reply in self.engine._round(taken):
                pending.done(reply)

    def until(self, *names: str) -> int:
        """Carry out rounds until each of these sessions has a reply; return their number."""
        for count in range(1, 200):
            self.round()
            if {*names} <= {name for name, _ in self.replies}:
                return count
        raise AssertionError(f"no reply to {names}: {self.replies}")

    def chunk(self, name: str) -> np.ndarray:
        mine = [reply for who, reply in self.replies if who == name]
        (found,) = [reply["actions"] for reply in mine if reply["kind"] == "chunk"]
        return found


# Fair shares


@pytest.mark.parametrize("greedy", [1, 8])
def test_an_observation_never_waits_for_the_whole_chunk_of_another(policy, greedy: int) -> None:
    crowd = [f"10.0.0.9/{number}" for number in range(greedy)]
    rounds = Rounds(policy, *crowd, "10.0.0.1/0")
    for name in crowd:
        rounds.ask(name, "act", steps=100)
    rounds.round()
    for tick in (1, 2):
        rounds.ask("10.0.0.1/0", "observe", tick=tick, observation=TICKS[tick])
        rounds.round()
    assert [(name, reply["kind"]) for name, reply in rounds.replies] == [
        ("10.0.0.1/0", "observed")
    ] * 2
    assert rounds.until(*crowd) == 100 // SLICE - 3


def test_an_address_with_many_sessions_has_its_share_of_a_round(policy) -> None:
    crowd = [f"10.0.0.9/{number}" for number in range(SHARE + 4)]
    rounds = Rounds(policy, *crowd)
    for name in crowd:
        rounds.ask(name, "observe", tick=1, observation=TICKS[1])
    rounds.round()
    assert len(rounds.replies) == SHARE + 4  # nobody else is there
    rounds = Rounds(policy, *crowd, "10.0.0.1/0")
    for tick in (1, 2):
        for name in crowd:
            rounds.ask(name, "observe", tick=tick, observation=TICKS[tick])
    rounds.ask("10.0.0.1/0", "observe", tick=1, observation=TICKS[1])
    for first in ([*crowd[:SHARE], "10.0.0.1/0"], crowd[SHARE:] + crowd[: SHARE - 4]):
        rounds.round()
        assert Counter(name for name, _ in rounds.replies) == Counter(first)
        rounds.replies.clear()
    rounds.round()
    assert all(reply["kind"] == "observed" for _, reply in rounds.replies)
    assert Counter(name for name, _ in rounds.replies) == Counter(crowd[SHARE - 4 :])


def test_observations_come_before_the_chunks_of_a_round(policy, monkeypatch) -> None:
    rounds, order = Rounds(policy, "10.0.0.1/0", "10.0.0.2/0"), []
    for name in ("_observe", "_act"):
        method = getattr(rounds.engine, name)
        monkeypatch.setattr(
            rounds.engine,
            name,
            lambda members, method=method, name=name: (order.append(name), method(members))[1],
        )
    rounds.ask("10.0.0.1/0", "act", steps=1)
    rounds.ask("10.0.0.2/0", "observe", tick=1, observation=TICKS[1])
    rounds.round()
    assert order == ["_observe", "_act"]


def test_a_short_chunk_is_ready_before_a_long_one_that_was_asked_for_earlier(policy) -> None:
    rounds = Rounds(policy, "10.0.0.9/0", "10.0.0.1/0")
    rounds.ask("10.0.0.9/0", "act", steps=100)
    rounds.round()
    rounds.ask("10.0.0.1/0", "act", steps=2 * SLICE)
    assert rounds.until("10.0.0.1/0") == 2 and len(rounds.replies) == 1
    rounds.until("10.0.0.9/0")
    # both are what the policy plans, each with its own noise
    for seed, (name, steps) in enumerate((("10.0.0.9/0", 100), ("10.0.0.1/0", 2 * SLICE))):
        assert_close([rounds.chunk(name)], in_process(policy, TICKS[:1], seed, steps=steps))


def test_the_requests_of_a_session_stay_in_order(policy) -> None:
    rounds = Rounds(policy, "10.0.0.1/0")
    rounds.ask("10.0.0.1/0", "act", steps=3 * SLICE)
    rounds.ask("10.0.0.1/0", "observe", tick=1, observation=TICKS[1])
    rounds.ask("10.0.0.1/0", "close")
    for _ in range(5):
        rounds.round()
    assert [reply["kind"] for _, reply in rounds.replies] == ["chunk", "observed", "closed"]
    assert_same([rounds.chunk("10.0.0.1/0")], in_process(policy, TICKS[:1], 0, steps=3 * SLICE))


def test_addresses_take_turns_where_chunks_are_made_whole() -> None:
    """Diffusion has no Euler steps: one batch at a time, and not always the same client's."""
    torch.manual_seed(1)
    policy = METHODS["diffusion-transformer"](nano(), STATE_FEATURES).eval()
    crowd = [f"10.0.0.9/{number}" for number in range(4)]
    rounds = Rounds(policy, *crowd, "10.0.0.1/0")
    for number, name in enumerate(crowd):
        rounds.ask(name, "act", steps=2 + number)  # four batches
    rounds.round()
    assert [name for name, _ in rounds.replies] == ["10.0.0.9/0"]
    rounds.ask("10.0.0.1/0", "act", steps=1)
    rounds.round()
    assert [name for name, _ in rounds.replies] == ["10.0.0.9/0", "10.0.0.1/0"]
    assert_close([rounds.chunk("10.0.0.1/0")], in_process(policy, TICKS[:1], 4, steps=1))
    rounds.until(*crowd)
    assert Counter(reply["kind"] for _, reply in rounds.replies) == {"chunk": 5}


def test_the_chunk_of_a_client_that_is_gone_is_given_up(policy) -> None:
    rounds = Rounds(policy, "10.0.0.9/0", "10.0.0.1/0")
    rounds.ask("10.0.0.9/0", "act", steps=100)
    rounds.round()
    gone = rounds.sessions["10.0.0.9/0"]
    close = PendingRequest(Close(request=0, session=gone.name), lambda reply: None)
    rounds.engine.drop(gone, close)
    rounds.round()
    assert not rounds.engine._making and gone.slot is None


def test_a_server_that_stops_finishes_the_chunks_in_the_making(policy) -> None:
    rounds = Rounds(policy, "10.0.0.9/0")
    rounds.ask("10.0.0.9/0", "act", steps=5 * SLICE)
    rounds.round()
    rounds.ask("10.0.0.9/0", "observe", tick=1, observation=TICKS[1])
    rounds.engine.stop()
    assert rounds.until("10.0.0.9/0") == 4
    assert [reply["kind"] for _, reply in rounds.replies] == ["chunk"]
    assert rounds.engine._next_round() is None  # what waits is not begun


def test_more_sampling_steps_than_allowed_are_refused(policy) -> None:
    settings = ServerSettings(port=0, max_sampling_steps=60)
    with running_server(policy, settings) as url, Client(url) as client:
        assert client.metadata.limits.sampling_steps == 60
        session = client.open()
        session.observe(**TICKS[0])
        with pytest.raises(ServerError, match=r"from 1 to 60, .* --max-steps 60.*, got 61"):
            session.act(steps=61)
        assert session.act(steps=60).shape == (4, 2)
    with (
        pytest.raises(ValueError, match="--max-steps: mine samples a chunk in 50 steps"),
        running_server(policy, ServerSettings(port=0, max_sampling_steps=49), name="mine"),
    ):
        pass


# Finite numbers


def test_an_observation_that_spoils_the_memory_is_left_out(policy) -> None:
    """A glitch of finite but absurd numbers; the episode goes on as if it had not come."""
    glitch = {**TICKS[1], "proprioception": np.full(5, 1e38, np.float32)}
    glitch["objects"] = np.full_like(TICKS[1]["objects"], -1e38)
    with running_server(policy, ServerSettings(port=0)) as url, Client(url) as client:
        session, other = client.open(seed=4), client.open(seed=5)
        session.observe(**TICKS[0])
        with pytest.raises(ServerError, match=r"it was left out.*same tick") as refused:
            session.observe(**glitch)
        assert refused.value.code == "not-finite" and session.ticks == 1
        # in a batch with another's, which is taken in
        futures = [other.observe_soon(**TICKS[0]), session.observe_soon(**glitch)]
        assert futures[0].result(20) == 1 and futures[1].exception(20).code == "not-finite"
        session.observe(**TICKS[1])
        assert_same([session.act(steps=3)], in_process(policy, TICKS[:2], 4, at=[1]))
        assert_close([other.act(steps=3)], in_process(policy, TICKS[:1], 5))


@pytest.mark.parametrize("method", ["chameleon", "diffusion-transformer"])
def test_a_chunk_that_is_not_finite_is_an_error(method: str, monkeypatch) -> None:
    torch.manual_seed(1)
    policy = METHODS[method](nano(), STATE_FEATURES).eval()
    with running_server(policy, ServerSettings(port=0)) as url, Client(url) as client:
        good, bad = client.open(seed=4), client.open(seed=5)
        good.observe(**TICKS[0])
        bad.observe(**{**TICKS[0], "proprioception": np.full(5, 99, np.float32)})
        inverse = policy.normalize_action.inverse
        with monkeypatch.context() as patch:
            patch.setattr(policy.normalize_action, "inverse", lambda chunk: inverse(chunk) / 0)
            with pytest.raises(
                ServerError, match=r"not finite numbers.*[Ss]top the robot.*not-finite"
            ):
                bad.act(steps=3)
        # the noise was not used up, and nobody else is concerned
        assert_same([good.act(steps=3)], in_process(policy, TICKS[:1], 4))
        assert bad.act(steps=3).shape == (4, 2)


# Requirements


def test_websockets_that_one_client_can_fill_are_not_accepted() -> None:
    root = Path(__file__).parent.parent
    needs: list[str] = []
    for path in (root / "pyproject.toml", root / "packages/chameleon_client/pyproject.toml"):
        project = tomllib.loads(path.read_text())["project"]
        needs += [
            *project.get("dependencies", []),
            *project.get("optional-dependencies", {}).get("serve", []),
        ]
    named = [need for need in needs if need.startswith("websockets")]
    assert named == ["websockets>=17"] * 2
