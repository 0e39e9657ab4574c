"""The computing thread: all waiting requests are carried out in rounds, in batches.

A round takes the first request of every session that has one. Observations form one batch, and then
comes a slice of the chunks in the making (see sampling): however expensive somebody's chunks are,
the observations of all others are computed between two slices. The requests of a session are
carried out in order.

Decisions
- A round waits only for clients that were answered in the last round and usually come back at once.
  Clients that never pause would otherwise take turns in two halves for ever. The wait is at most a
  quarter of the duration of the last round. Robots with a control rate are never waited for.
- An observation is checked alone before it joins a batch, so that an error concerns its sender
  only. If a batch fails all the same, its members are computed one by one.
- Images in uint8 and in float are never joined: torch would convert both to 0..255.
- A refused request changes nothing: neither the memory, nor the number of ticks, nor the noise of
  the next chunk. An observation after which the memory is not finite is refused, too: one glitch of
  a sensor would otherwise spoil every later chunk of the episode.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from chameleon_policy.policy import Observation, VisuomotorPolicy
from chameleon_policy.policy.checks import check_observation
from chameleon_policy.serve.answers import (
    Member,
    answer,
    answer_in_batches,
    compute_batch,
    error_reply,
)
from chameleon_policy.serve.batches import concatenate, finite, image_types
from chameleon_policy.serve.instructions import Embed
from chameleon_policy.serve.memories import Memories
from chameleon_policy.serve.requests import Act, Close, Observe, Open, RequestError, Resume
from chameleon_policy.serve.sampling import Draft, sampler
from chameleon_policy.serve.sessions import PendingRequest, Reply, Session

LOG = logging.getLogger("chameleon_policy.serve")
PATIENCE = 0.25
"""Longest wait for clients that come back at once, as a share of the last round's duration."""
NOT_FINITE_MEMORY = (
    "observation: after it the memory would not be finite numbers, so it was left out and the "
    "memory is as it was; check the sensors and their units, and send the next observation with "
    "the same tick"
)
NOT_FINITE_CHUNK = (
    "act: the policy planned actions that are not finite numbers; stop the robot. The memory is as "
    "it was: its observations, or the weights, are far from those of training"
)
SHARE = 8
"""Observations of one address in a round, if others have sessions, too: the length of a round is
what a robot has to wait for."""
Deliver = Callable[[list[tuple[PendingRequest, Reply]]], object]
"""Called in the computing thread with all replies of a round."""


@dataclass(eq=False, slots=True)
class Counts:
    """Counts of computed ticks, chunks and batches."""

    ticks: int = 0
    chunks: int = 0
    batches: int = 0
    """Batches of observations: ticks / batches is the mean batch size."""


class Engine:
    """The owner of the policy and of all memories."""

    def __init__(
        self, policy: VisuomotorPolicy, max_sessions: int, embed: Embed | None = None
    ) -> None:
        if policy.features.language is not None and embed is None:
            raise ValueError("this policy takes instructions: expected `embed`, which embeds texts")
        self.policy, self.counts = policy, Counts()
        self._embed = embed
        with torch.inference_mode():
            self.memories = Memories(policy, max_sessions)
        self._sampler = sampler(policy, self.memories)
        self._making: dict[Session, Member] = {}
        """Requests for chunks in the making, in order of arrival."""
        self._open_sessions: set[Session] = set()
        self._ready: dict[Session, None] = {}
        """Sessions with a waiting request, in order of arrival."""
        self._answered: list[Session] = []
        """Sessions of the last round."""
        self._finished = self._patience = 0.0
        """When the last round ended, and how long after it a client may be waited for."""
        self._changed = threading.Condition()
        self._stopping = False
        self._thread: threading.Thread | None = None
        self.failure: BaseException | None = None

    # From the network's thread

    def start(self, deliver: Deliver, failed: Callable[[], object]) -> None:
        """Start the thread. `failed` is called if it cannot go on."""
        self._thread = threading.Thread(
            target=self._run, args=(deliver, failed), name="chameleon-engine", daemon=True
        )
        self._thread.start()

    def submit(self, session: Session, pending: PendingRequest) -> None:
        """Queue a request."""
        with self._changed:
            if not session.waiting:
                session.note_return()
            session.waiting.append(pending)
            self._ready[session] = None
            self._changed.notify()

    def drop(self, session: Session, pending: PendingRequest) -> None:
        """Discard the requests of a session whose client is gone, and close it."""
        with self._changed:
            session.gone = True
            session.waiting.clear()
            session.waiting.append(pending)
            self._ready[session] = None
            self._changed.notify()

    def stop(self) -> None:
        """End the thread after the current round and the chunks in the making.

        Waiting requests are not carried out.
        """
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    # The thread that computes

    def _run(self, deliver: Deliver, failed: Callable[[], object]) -> None:
        try:
            with torch.inference_mode():
                while (taken := self._next_round()) is not None:
                    start = time.perf_counter()
                    asking = dict.fromkeys((*self._making, *(session for session, _ in taken)))
                    replies = self._round(taken)
                    with self._changed:
                        self._finished = time.perf_counter()
                        self._patience = PATIENCE * (self._finished - start)
                        self._answered = [each for each in asking if each not in self._making]
                        for session in self._answered:
                            session.answered_at = self._finished
                    deliver(replies)
        except BaseException as error:
            LOG.exception("the computing thread cannot go on")
            self.failure = error
            failed()

    def _next_round(self) -> list[tuple[Session, PendingRequest]] | None:
        """Return the first request of every session that has one and no chunk in the making.

        Without any, wait for one, unless there are chunks to go on with. None: stop.
        """
        with self._changed:
            if not self._making:
                self._wait()
            for session in [each for each in self._making if each.gone]:
                del self._making[session]
            if self._stopping:
                return [] if self._making else None
            taken = [(session, session.waiting.popleft()) for session in self._whose_turn()]
            # who had to wait comes first the next time
            for session, _ in taken:
                del self._ready[session]
            self._ready |= {session: None for session, _ in taken if session.waiting}
        return taken

    def _whose_turn(self) -> list[Session]:
        """Return the sessions whose first request the next round carries out."""
        share = SHARE if len({session.peer for session in self._open_sessions}) > 1 else None
        observing: Counter[str] = Counter()
        turn = []
        for session in self._ready:
            if session in self._making:
                continue
            if isinstance(session.waiting[0].request, Observe):
                if observing[session.peer] == share:
                    continue
                observing[session.peer] += 1
            turn.append(session)
        return turn

    def _wait(self) -> None:
        """Wait for a request, and a little longer for clients that come back at once."""
        self._changed.wait_for(lambda: self._ready or self._stopping)
        soon = [session for session in self._answered if session.pause < self._patience]
        rest = self._finished + self._patience - time.perf_counter()
        if soon and rest > 0:
            self._changed.wait_for(
                lambda: self._stopping or all(session in self._ready for session in soon), rest
            )

    def _round(
        self, taken: Sequence[tuple[Session, PendingRequest]]
    ) -> list[tuple[PendingRequest, Reply]]:
        replies: list[tuple[PendingRequest, Reply]] = []
        by_kind: dict[type, list[tuple[Session, PendingRequest]]] = defaultdict(list)
        for session, pending in taken:
            by_kind[type(pending.request)].append((session, pending))
        # closing first, because it frees slots
        for kind, carry_out in (
            (Close, self._close),
            (Open, self._open),
            (Resume, self._resume),
        ):
            for session, pending in by_kind[kind]:
                replies.append((pending, answer(session, carry_out, session, pending.request)))
        replies += answer_in_batches(
            by_kind[Observe], self._check_observe, _image_types, self._observe
        )
        for session, pending in by_kind[Act]:
            member = answer(session, self._check_act, session, pending)
            if isinstance(member, Member):
                self._making[session] = member
            else:
                replies.append((pending, member))
        return replies + self._go_on_sampling()

    # Sessions

    def _open(self, session: Session, request: Open) -> Reply:
        language = self.policy.features.language
        if language is None and request.instruction is not None:
            raise RequestError(
                "bad-instruction",
                "instruction: this policy was built without language; leave it out",
            )
        instruction = (
            None
            if self._embed is None or language is None
            else self._embed(request.instruction or "")
        )
        slot = self.memories.take()
        self._open_sessions.add(session)
        seed = session.begin(slot, request.seed, instruction)
        secret = {} if session.secret is None else {"secret": session.secret}
        return {"kind": "opened", "seed": seed, "ticks": 0, **secret}

    def _resume(self, session: Session, request: Resume) -> Reply:
        _slot(session)
        return {"kind": "resumed", "seed": session.seed, "ticks": session.ticks}

    def _close(self, session: Session, request: Close) -> Reply:
        if session.slot is not None:
            self.memories.give_back(session.slot)
        session.slot = None
        self._open_sessions.discard(session)
        return {"kind": "closed", "ticks": session.ticks}

    # Observing

    def _check_observe(self, session: Session, pending: PendingRequest) -> Member:
        slot, request = _slot(session), pending.request
        assert isinstance(request, Observe)
        if request.tick != session.ticks:
            raise RequestError(
                "wrong-tick",
                f"tick: expected {session.ticks}, the number of observations in the memory, got "
                f"{request.tick}; every control tick is observed once and in order",
            )
        arrays = request.observation
        try:
            observation = Observation.single(
                proprioception=arrays["proprioception"],
                images=arrays.get("images"),
                objects=arrays.get("objects"),
                instruction=session.instruction,
            )
            check_observation(observation, self.policy.features, (1,))
        except ValueError as error:
            raise RequestError("bad-observation", str(error)) from None
        return Member(session, pending, slot, observation)

    def _observe(self, members: Sequence[Member]) -> list[Reply | None]:
        slots = [member.slot for member in members]
        observation = concatenate(
            [member.observation for member in members if member.observation]
        ).to(self.policy.device)
        # `observe` would repeat the checks that every observation has passed alone
        after = self.policy.advance(
            observation.map(lambda tensor: tensor.unsqueeze(1)), self.memories.read(slots)
        )
        fine = finite(after)
        kept = [index for index, each in enumerate(fine) if each]
        if kept:
            whole = len(kept) == len(members)
            self.memories.write([slots[index] for index in kept], after if whole else after[kept])
        for index in kept:
            members[index].session.ticks += 1
        self.counts.ticks += len(kept)
        self.counts.batches += 1
        return [
            {"kind": "observed", "ticks": member.session.ticks}
            if each
            else error_reply("not-finite", NOT_FINITE_MEMORY, member.session.ticks)
            for member, each in zip(members, fine, strict=True)
        ]

    # Acting

    def _check_act(self, session: Session, pending: PendingRequest) -> Member:
        slot = _slot(session)
        if session.ticks == 0:
            raise RequestError(
                "nothing-observed",
                "act: nothing was observed in this session yet; send an observation first",
            )
        assert isinstance(pending.request, Act)
        steps, features = pending.request.steps, self.policy.features
        noise = session.noise(features.horizon, features.action)[None].to(self.policy.device)
        steps = self.policy.config.sampling_steps if steps is None else steps
        draft = Draft(slot=slot, chunk=noise, steps=steps, peer=session.peer)
        return Member(session, pending, slot, draft=draft)

    def _go_on_sampling(self) -> list[tuple[PendingRequest, Reply]]:
        """Compute a slice of the chunks in the making; return those that are done."""
        by_draft = {member.draft: member for member in self._making.values() if member.draft}
        if not by_draft:
            return []
        chosen = [by_draft[draft] for draft in self._sampler.choose(list(by_draft))]
        chosen.sort(key=lambda member: member.slot)
        replies = compute_batch(chosen, self._act)
        answered = {id(pending) for pending, _ in replies}
        for member in chosen:
            if id(member.pending) in answered:
                del self._making[member.session]
        return replies

    def _act(self, members: Sequence[Member]) -> list[Reply | None]:
        self._sampler.compute([member.draft for member in members if member.draft])
        over = [member.draft for member in members if member.draft and member.draft.over]
        if not over:
            return [None] * len(members)
        chunks = iter(torch.cat([draft.chunk for draft in over]).float().cpu().numpy())
        return [
            self._reply_with(member, next(chunks)) if member.draft and member.draft.over else None
            for member in members
        ]

    def _reply_with(self, member: Member, chunk: np.ndarray) -> Reply:
        session = member.session
        if not np.isfinite(chunk).all():
            return error_reply("not-finite", NOT_FINITE_CHUNK, session.ticks)
        session.use_noise()
        self.counts.chunks += 1
        return {"kind": "chunk", "ticks": session.ticks, "actions": chunk}


def _slot(session: Session) -> int:
    if session.slot is None:  # sent right after an `open` that was refused
        raise RequestError("unknown-session", f"session: {session.name!r} was not opened")
    return session.slot


def _image_types(member: Member) -> Hashable:
    assert member.observation is not None
    return image_types(member.observation)
