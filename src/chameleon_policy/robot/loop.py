"""One episode at a fixed rate: an observation goes to the memory in every tick, chunks come beside
it.

A tick: perceive, send what was perceived, take in a chunk that has come, ask for one if it is due,
move. Nothing in it waits for the server: while a chunk is computed, the robot goes on with the one
before, and the new one is blended in where it has got to. With `patience` a tick waits that long
for a chunk that is due: with enough of it, what is done is what an evaluation in one process would
do.

The robot is stopped when the connection is lost, when the memory falls behind by more than
`timeout`, when a policy sends numbers that are none, when somebody asks for it, and when the robot
itself fails.
"""

from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np

from chameleon_policy.robot.clock import Clock
from chameleon_policy.robot.latency import Timings
from chameleon_policy.robot.limits import Limits
from chameleon_policy.robot.plan import Plan
from chameleon_policy.robot.robot import Array, Robot, Sight

T = TypeVar("T")
INTERRUPTED = "interrupted"
"""Why a robot was stopped that somebody wanted to stop."""


class Session(Protocol):
    """A memory on a server, as `chameleon_client` gives it."""

    def observe_soon(
        self, *, proprioception: Any, images: Any = ..., objects: Any = ..., decision: bool = ...
    ) -> Future[int]:
        """Send what is perceived; the future has the number of ticks that the memory has seen."""

    def act_soon(self, *, steps: int | None = ...) -> Future[Any]:
        """Ask for a chunk of actions, H A."""


class StoppedError(RuntimeError):
    """The robot was stopped before the episode was over."""


@dataclass(frozen=True, kw_only=True)
class LoopSettings:
    """How an episode is played."""

    rate: float
    """Ticks per second."""
    executed: int
    """Ticks from one chunk to the next."""
    blend: int = 2
    """Ticks over which a new chunk takes over from the old one."""
    steps: int | None = None
    """Sampling steps of a chunk; None: as the policy says."""
    patience: float = 0.0
    """Seconds for which a tick waits for a chunk that is due."""
    timeout: float = 1.0
    """Seconds by which the memory may fall behind before the robot is stopped."""
    seconds: float | None = None
    """Longest episode; None: the robot says when it is over."""

    def __post_init__(self) -> None:
        Clock(self.rate)
        Plan(executed=self.executed, blend=self.blend)
        for name, smallest in (("patience", 0.0), ("timeout", 1e-3), ("seconds", 1e-3)):
            value = getattr(self, name)
            if value is not None and not value >= smallest:
                raise ValueError(f"--{name} must be at least {smallest:g} seconds, got {value:g}")

    @property
    def ticks(self) -> int | None:
        """Longest episode in ticks."""
        return None if self.seconds is None else max(1, round(self.seconds * self.rate))


@dataclass(eq=False)
class Played:
    """What happened, tick by tick."""

    sights: list[Sight] = field(default_factory=list)
    """Only if they are kept: pictures of a minute may be gigabytes."""
    actions: list[Array] = field(default_factory=list)
    timings: Timings = field(default_factory=Timings)
    stopped: str | None = None
    """Why the robot was stopped, if it was."""
    error: Exception | None = None
    """What the robot itself raised, if it did."""


@dataclass(frozen=True)
class _Asked:
    tick: int
    chunk: Future[Any]


def play(
    robot: Robot,
    session: Session,
    settings: LoopSettings,
    limits: Limits,
    *,
    clock: Clock | None = None,
    keep_sights: bool = True,
    interrupted: Callable[[], bool] = lambda: False,
) -> Played:
    """One episode. It is returned also if the robot was stopped: `Played.stopped` says why.

    `interrupted` is asked before every tick whether somebody wants the robot to stop.
    """
    clock = clock or Clock(settings.rate)
    episode = Played()
    loop = _Loop(robot, session, settings, limits, clock.period, episode, keep_sights)
    try:
        with _no_collection():
            while not robot.over and (
                settings.ticks is None or len(episode.actions) < settings.ticks
            ):
                if interrupted():
                    raise StoppedError(INTERRUPTED)
                clock.tick()
                loop.tick()
        loop.wait_for_memory()
    except StoppedError as error:
        robot.stop()
        episode.stopped = str(error)
    except BaseException as error:
        _stop_after(robot, error)
        if not isinstance(error, Exception):
            raise
        episode.stopped, episode.error = f"{type(error).__name__}: {error}", error
    timings = episode.timings
    timings.lateness, timings.missed_periods, timings.ticks = (
        clock.lateness,
        clock.missed,
        len(episode.actions),
    )
    timings.missed_memory = loop.ticks - loop.remembered
    return episode


def _stop_after(robot: Robot, error: BaseException) -> None:
    """Stop a robot that has failed; if that fails as well, the first error is told, with a note."""
    try:
        robot.stop()
    except Exception as second:
        error.add_note(f"and the robot could not be stopped: {second}")


@contextmanager
def _no_collection() -> Iterator[None]:
    """Python's garbage collector may stop a tick for many milliseconds: it waits until the episode
    is over.
    """
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class _Loop:
    def __init__(
        self,
        robot: Robot,
        session: Session,
        settings: LoopSettings,
        limits: Limits,
        period: float,
        episode: Played,
        keep_sights: bool,
    ) -> None:
        self._robot, self._session, self._settings, self._limits = robot, session, settings, limits
        self._period = robot.period or period
        self._episode, self._timings, self._keep_sights = episode, episode.timings, keep_sights
        self.ticks = 0
        """Observations that were sent."""
        self._plan = Plan(executed=settings.executed, blend=settings.blend)
        self._asked: _Asked | None = None
        self._seen: dict[int, float] = {}
        """When the ticks whose chunk has not been carried out yet were perceived."""
        self._waiting: deque[tuple[float, Future[int]]] = deque()
        self._before: Array | None = None
        self.remembered = 0
        """Ticks that the memory has, by the server's own count."""

    def tick(self) -> None:
        tick, sight = self.ticks, self._robot.observe()
        seen = time.perf_counter()
        if self._keep_sights:
            self._episode.sights.append(sight)
        self._check_memory(seen)
        future = _heard(
            lambda: self._session.observe_soon(**sight.arrays(), decision=sight.decision)
        )
        self.ticks += 1
        self._waiting.append((seen, future))
        future.add_done_callback(_timer(self._timings.observe, seen))
        if sight.decision:
            self._plan.drop()
            # a chunk that is still on its way was planned before
            self._asked, self._seen = None, {}
        self._take_in(tick)
        if self._asked is None and self._plan.due(tick):
            self._ask(tick, seen)
            self._take_in(tick)
        self._move(tick)

    def wait_for_memory(self) -> None:
        """At the end: what is still on its way counts."""
        while self._waiting:
            wait([self._waiting[0][1]], self._settings.timeout)
            self._check_memory(time.perf_counter())

    def _check_memory(self, now: float) -> None:
        """Take in the server's words, in order; an error or a long silence stops the robot."""
        while self._waiting and self._waiting[0][1].done():
            _, future = self._waiting.popleft()
            self.remembered = _heard(future.result)
        if self._waiting and now - self._waiting[0][0] > self._settings.timeout:
            raise StoppedError(
                f"the server has not taken in an observation for {self._settings.timeout:g} s (--timeout)"
            )

    def _ask(self, tick: int, seen: float) -> None:
        chunk = _heard(lambda: self._session.act_soon(steps=self._settings.steps))
        chunk.add_done_callback(_timer(self._timings.chunk, seen))
        self._asked, self._seen[tick] = _Asked(tick, chunk), seen
        self._plan.ask(tick)
        wait([chunk], min(self._settings.patience, self._settings.timeout))

    def _take_in(self, tick: int) -> None:
        """A chunk that has come."""
        if self._asked is not None and self._asked.chunk.done():
            self._plan.add(_heard(self._asked.chunk.result), self._asked.tick, tick)
            self._asked = None

    def _move(self, tick: int) -> None:
        planned = self._plan.at(tick)
        if planned is None:
            action = self._robot.hold()
            self._timings.idle += bool(self._timings.end_to_end)
        else:
            before = self._robot.hold() if self._before is None else self._before
            try:
                action, limited = self._limits.apply(planned[0], before, self._period)
            except ValueError as error:
                raise StoppedError(f"the policy's {error}") from error
            self._timings.limited += limited
        self._before = np.asarray(action, np.float32)
        if planned is not None and planned[1] in self._seen:
            self._timings.end_to_end.append(time.perf_counter() - self._seen.pop(planned[1]))
        self._episode.actions.append(self._before)
        self._robot.send(self._before)


def _timer(delays: list[float], since: float) -> Callable[[Future[Any]], None]:
    """Notes how long an answer took; one that never came took no time at all."""

    def note(answer: Future[Any]) -> None:
        if answer.exception() is None:
            delays.append(time.perf_counter() - since)

    return note


def _heard(call: Callable[[], T]) -> T:
    """What the server says; whatever goes wrong there (a lost connection, a refusal) stops the
    robot.
    """
    try:
        return call()
    except Exception as error:
        raise StoppedError(f"{type(error).__name__}: {error}") from error
