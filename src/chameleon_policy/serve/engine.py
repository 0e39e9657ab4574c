"""The thread that computes: everything that waits is taken together, and while it is computed the
next lot piles up.

A round takes the first request of every session that has one. Observations are one batch, chunks
another (one for every number of sampling steps). A session's requests are carried out in their
order.

Decisions
- Nobody waits for a batch to fill up, but for those who were answered in the last round and are
  known to come back at once:
  clients that never pause would otherwise take turns in two halves for ever, each waiting for the
  other. It is at most a quarter of the time that the last round took. A robot that ticks at its own
  pace is never waited for.
- An observation is checked by itself before it joins a batch: what is wrong with one is no other's
  trouble. If a batch
  fails all the same, its members are computed one by one.
- Pictures in uint8 and in float are never joined: torch would make 0..255 out of both.
- A refused request changes nothing: not the memory, not the number of ticks, not the noise of the
  next chunk.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from chameleon_policy.policy import Observation, VisuomotorPolicy
from chameleon_policy.policy.checks import check_observation
from chameleon_policy.serve.instructions import Embed
from chameleon_policy.serve.memories import Memories
from chameleon_policy.serve.requests import Act, Close, Observe, Open, Refusal
from chameleon_policy.serve.sessions import Job, Reply, Session

LOG = logging.getLogger("chameleon_policy.serve")
PATIENCE = 0.25
"""Of a round's time: how long the next one may wait for those who come back at once."""
Deliver = Callable[[list[tuple[Job, Reply]]], object]
"""Called in the computing thread with all replies of a round."""


@dataclass(eq=False, slots=True)
class Counts:
    """What was computed so far."""

    ticks: int = 0
    chunks: int = 0
    batches: int = 0
    """Of observations: ticks / batches is how many were computed together."""


@dataclass(eq=False, slots=True)
class _Member:
    """What one session has in a batch."""

    session: Session
    job: Job
    slot: int
    observation: Observation | None = None
    """Checked, a batch of one; None where a chunk is asked for."""


Members = Sequence[_Member]


class Engine:
    """Owns the policy and all memories."""

    def __init__(
        self, policy: VisuomotorPolicy, max_sessions: int, embed: Embed | None = None
    ) -> None:
        if policy.features.language is not None and embed is None:
            raise ValueError(
                "this policy takes instructions: expected `embed`, which makes embeddings of texts"
            )
        self.policy, self.counts = policy, Counts()
        self._embed = embed
        with torch.inference_mode():
            self.memories = Memories(policy, max_sessions)
        self._ready: dict[Session, None] = {}
        """Sessions with a waiting request, in the order in which they came."""
        self._answered: list[Session] = []
        """Those of the last round."""
        self._finished = self._patience = 0.0
        """When the last round was, and how long after it somebody may be waited for."""
        self._changed = threading.Condition()
        self._stopping = False
        self._thread: threading.Thread | None = None
        self.failure: BaseException | None = None

    # From the network's thread

    def start(self, deliver: Deliver, failed: Callable[[], object]) -> None:
        """Begin to compute. `failed` is called if the thread cannot go on."""
        self._thread = threading.Thread(
            target=self._run, args=(deliver, failed), name="chameleon-engine", daemon=True
        )
        self._thread.start()

    def submit(self, session: Session, job: Job) -> None:
        """Let a request wait for its turn."""
        with self._changed:
            if not session.waiting:
                session.came_back()
            session.waiting.append(job)
            self._ready[session] = None
            self._changed.notify()

    def drop(self, session: Session, job: Job) -> None:
        """Forget what waits in a session, and close it instead: nobody is there any more."""
        with self._changed:
            session.waiting.clear()
            session.waiting.append(job)
            self._ready[session] = None
            self._changed.notify()

    def stop(self) -> None:
        """Finish the running round, leave what waits, and end the thread."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    # The thread that computes

    def _run(self, deliver: Deliver, failed: Callable[[], object]) -> None:
        try:
            with torch.inference_mode():
                while taken := self._next_round():
                    start = time.perf_counter()
                    replies = self._round(taken)
                    with self._changed:
                        self._finished = time.perf_counter()
                        self._patience = PATIENCE * (self._finished - start)
                        self._answered = [session for session, _ in taken]
                        for session in self._answered:
                            session.answered_at = self._finished
                    deliver(replies)
        except BaseException as error:
            LOG.exception("the computing thread cannot go on")
            self.failure = error
            failed()

    def _next_round(self) -> list[tuple[Session, Job]]:
        """The first request of every session that has one; empty when it is time to stop."""
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._stopping)
            soon = [session for session in self._answered if session.pause < self._patience]
            rest = self._finished + self._patience - time.perf_counter()
            if soon and rest > 0:
                self._changed.wait_for(
                    lambda: self._stopping or all(session in self._ready for session in soon), rest
                )
            if self._stopping:
                return []
            taken = [(session, session.waiting.popleft()) for session in self._ready]
            self._ready = {session: None for session in self._ready if session.waiting}
        return taken

    def _round(self, taken: Sequence[tuple[Session, Job]]) -> list[tuple[Job, Reply]]:
        replies: list[tuple[Job, Reply]] = []
        by_kind: dict[type, list[tuple[Session, Job]]] = defaultdict(list)
        for session, job in taken:
            by_kind[type(job.request)].append((session, job))
        # Closed first: their slots can be given to those who come.
        for kind, carry_out in ((Close, self._close), (Open, self._open)):
            for session, job in by_kind[kind]:
                replies.append((job, self._answer(session, carry_out, session, job.request)))
        replies += self._in_batches(
            by_kind[Observe], self._checked, _kinds_of_pictures, self._observe
        )
        replies += self._in_batches(by_kind[Act], self._may_act, _sampling_steps, self._act)
        return replies

    def _in_batches(
        self,
        jobs: Sequence[tuple[Session, Job]],
        check: Callable[[Session, Job], _Member],
        kind: Callable[[_Member], Hashable],
        compute: Callable[[Members], list[Reply]],
    ) -> list[tuple[Job, Reply]]:
        """Check every request by itself, then compute those of one kind together."""
        replies: list[tuple[Job, Reply]] = []
        alike: dict[Hashable, list[_Member]] = defaultdict(list)
        for session, job in jobs:
            member = self._answer(session, check, session, job)
            if isinstance(member, _Member):
                alike[kind(member)].append(member)
            else:
                replies.append((job, member))
        for members in alike.values():
            replies += self._together(sorted(members, key=lambda member: member.slot), compute)
        return replies

    def _together(
        self, members: Members, compute: Callable[[Members], list[Reply]]
    ) -> list[tuple[Job, Reply]]:
        """Replies to a batch; one by one if it fails as a whole."""
        if len(members) == 1:
            answer = self._answer(members[0].session, compute, members)
            return [(members[0].job, answer[0] if isinstance(answer, list) else answer)]
        try:
            answers = compute(members)
        except Exception:
            LOG.exception("a batch of %d failed; its members are computed one by one", len(members))
            return [reply for member in members for reply in self._together([member], compute)]
        return [(member.job, answer) for member, answer in zip(members, answers, strict=True)]

    def _answer(self, session: Session, carry_out: Callable[..., Any], *arguments: Any) -> Any:
        """What `carry_out` returns, or a reply that says why it could not."""
        try:
            return carry_out(*arguments)
        except Refusal as refusal:
            return error_reply(refusal.code, refusal.message, session.ticks)
        except ValueError as error:  # the policy's own checks
            return error_reply("refused", str(error), session.ticks)
        except Exception as error:
            LOG.exception("a request failed")
            return error_reply(
                "failed",
                f"the policy failed ({type(error).__name__}); see the server's log",
                session.ticks,
            )

    # Opening and closing

    def _open(self, session: Session, request: Open) -> Reply:
        language = self.policy.features.language
        if language is None and request.instruction is not None:
            raise Refusal(
                "bad-instruction",
                "instruction: this policy was built without language; leave it out",
            )
        instruction = (
            None
            if self._embed is None or language is None
            else self._embed(request.instruction or "")
        )
        slot = self.memories.take()
        return {
            "kind": "opened",
            "seed": session.begin(slot, request.seed, instruction),
            "ticks": 0,
        }

    def _close(self, session: Session, request: Close) -> Reply:
        if session.slot is not None:
            self.memories.give_back(session.slot)
        session.slot = None
        return {"kind": "closed", "ticks": session.ticks}

    # Observing

    def _checked(self, session: Session, job: Job) -> _Member:
        slot, request = _slot(session), job.request
        assert isinstance(request, Observe)
        if request.tick != session.ticks:
            raise Refusal(
                "wrong-tick",
                f"tick: expected {session.ticks}, the number of observations that the memory has, got {request.tick}; "
                "every control tick is observed once and in order",
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
            raise Refusal("bad-observation", str(error)) from None
        return _Member(session, job, slot, observation)

    def _observe(self, members: Members) -> list[Reply]:
        slots = [member.slot for member in members]
        observation = _joined([member.observation for member in members if member.observation]).to(
            self.policy.device
        )
        deciding = [place for place, member in enumerate(members) if _observe_of(member).decision]
        memory = self.memories.read(slots)
        if deciding:
            memory = self.policy.drop_plans(memory, deciding)
        # Checked above, one by one: `observe` would do it again.
        after = self.policy.advance(observation.map(lambda tensor: tensor.unsqueeze(1)), memory)
        self.memories.write(slots, after)
        for member in members:
            member.session.ticks += 1
        self.counts.ticks += len(members)
        self.counts.batches += 1
        return [{"kind": "observed", "ticks": member.session.ticks} for member in members]

    # Acting

    def _may_act(self, session: Session, job: Job) -> _Member:
        slot = _slot(session)
        if session.ticks == 0:
            raise Refusal(
                "nothing-observed",
                "act: nothing was observed in this session yet; send an observation first",
            )
        return _Member(session, job, slot)

    def _act(self, members: Members) -> list[Reply]:
        features, steps = self.policy.features, _sampling_steps(members[0])
        noise = torch.stack(
            [member.session.noise(features.horizon, features.action) for member in members]
        )
        memory = self.memories.read([member.slot for member in members])
        chunks = (
            self.policy.act(memory, steps=steps, source=noise.to(self.policy.device))
            .float()
            .cpu()
            .numpy()
        )
        for member in members:
            member.session.acted()
        self.counts.chunks += len(members)
        return [
            {"kind": "chunk", "ticks": member.session.ticks, "actions": chunk}
            for member, chunk in zip(members, chunks, strict=True)
        ]


def error_reply(code: str, message: str, ticks: int | None = None) -> Reply:
    """A request was refused; `ticks` is what the session's memory has, if there is one."""
    reply = {"kind": "error", "code": code, "message": message}
    return reply if ticks is None else {**reply, "ticks": ticks}


def _slot(session: Session) -> int:
    if session.slot is None:  # its `open` was refused, and this came along behind it
        raise Refusal("unknown-session", f"session: {session.name!r} was not opened")
    return session.slot


def _sampling_steps(member: _Member) -> int | None:
    assert isinstance(member.job.request, Act)
    return member.job.request.steps


def _observe_of(member: _Member) -> Observe:
    assert isinstance(member.job.request, Observe)
    return member.job.request


def _kinds_of_pictures(member: _Member) -> Hashable:
    assert member.observation is not None
    return tuple(
        sorted((name, str(image.dtype)) for name, image in member.observation.images.items())
    )


def _joined(observations: Sequence[Observation]) -> Observation:
    if len(observations) == 1:
        return observations[0]

    def cat(tensors: Iterable[Tensor | None]) -> Tensor:
        return torch.cat([tensor for tensor in tensors if tensor is not None])

    first = observations[0]
    return Observation(
        proprioception=cat(each.proprioception for each in observations),
        images={name: cat(each.images[name] for each in observations) for name in first.images},
        objects=None if first.objects is None else cat(each.objects for each in observations),
        instruction=None
        if first.instruction is None
        else cat(each.instruction for each in observations),
    )
