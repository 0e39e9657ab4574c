"""One episode at a fixed rate: the memory gets every observation, chunks are computed alongside.

A tick: observe, send the observation, take in a chunk that has arrived, request one if it is due,
move. No step waits for the server: while a chunk is computed, the robot goes on with the one
before, and the new one is blended in at the present tick. With `patience` a tick waits that long
for a chunk that is due. With enough patience and without blending, the actions are those of a
rollout, except that rollouts drop chunks at decisions and average the chunks of ACT.

The robot is stopped when the connection is lost (and goes on if the same memory can be reached
again), when the memory falls behind by more than
`timeout`, when actions are not finite numbers, on request, and when the robot itself fails.
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
from chameleon_policy.robot.robot import Array, Robot, RobotObservation
from chameleon_policy.robot.settings import LoopSettings

T = TypeVar("T")


class Session(Protocol):
    """A memory on a server, as `chameleon_client` provides it."""

    @property
    def ticks(self) -> int:
        """Number of observations in the memory, as of the server's last reply."""

    def observe_soon(
        self, *, proprioception: Any, images: Any = ..., objects: Any = ...
    ) -> Future[int]:
        """Send an observation; the result is the number of observations in the memory."""

    def act_soon(self, *, steps: int | None = ...) -> Future[Any]:
        """Request a chunk of actions (H A)."""


class StoppedError(RuntimeError):
    """The reason why the robot was stopped before the end of an episode."""


class LostError(StoppedError):
    """The loss of the connection."""


@dataclass(eq=False)
class EpisodeReport:
    """The course of an episode, tick by tick, and how it ended."""

    observations: list[RobotObservation] = field(default_factory=list)
    """Kept only on request: the images of a minute may take gigabytes."""
    actions: list[Array] = field(default_factory=list)
    timings: Timings = field(default_factory=Timings)
    stopped: str | None = None
    """Why the robot was stopped, if it was."""
    interrupted: bool = False
    """Whether it was stopped on request."""
    lost: bool = False
    """Whether it was stopped because the connection was lost."""
    error: Exception | None = None
    """The error of the robot itself, if there was one."""


def play(
    robot: Robot,
    session: Session,
    settings: LoopSettings,
    limits: Limits,
    *,
    clock: Clock | None = None,
    keep_observations: bool = True,
    interrupted: Callable[[], bool] = lambda: False,
    resume: Callable[[], Session | None] = lambda: None,
) -> EpisodeReport:
    """Play one episode and report it, also if the robot was stopped.

    `interrupted` is called before every tick; the robot is stopped when it returns True. `resume`
    is called when the connection is lost and the robot was stopped; the episode goes on if it
    returns its session on another connection.
    """
    clock = clock or Clock(settings.rate)
    report = EpisodeReport()
    loop = _Loop(robot, session, settings, limits, clock.period, report, keep_observations)
    try:
        with _no_garbage_collection():
            while True:
                try:
                    _run(loop, robot, settings, clock, report, interrupted)
                    break
                except LostError as error:
                    robot.stop()
                    if (again := resume()) is None:
                        report.stopped, report.lost = str(error), True
                        break
                    loop.go_on(again)
    except StoppedError as error:
        robot.stop()
        report.stopped = str(error)
    except BaseException as error:
        _stop_after(robot, error)
        if not isinstance(error, Exception):
            raise
        report.stopped, report.error = f"{type(error).__name__}: {error}", error
    timings = report.timings
    timings.lateness, timings.missed_periods = clock.lateness, clock.missed
    timings.ticks = len(report.actions)
    timings.missed_memory = loop.ticks - loop.remembered
    return report


def _run(
    loop: _Loop,
    robot: Robot,
    settings: LoopSettings,
    clock: Clock,
    report: EpisodeReport,
    interrupted: Callable[[], bool],
) -> None:
    """Carry out ticks until the episode is over and all of it is in the memory."""
    loop.send_lacking()
    while not robot.over and (settings.ticks is None or len(report.actions) < settings.ticks):
        if interrupted():
            report.interrupted = True
            raise StoppedError("interrupted")
        clock.tick()
        loop.tick()
    loop.wait_for_memory()


def _stop_after(robot: Robot, error: BaseException) -> None:
    """Stop a robot that has failed; if that fails, too, add a note to the first error."""
    try:
        robot.stop()
    except Exception as second:
        error.add_note(f"and the robot could not be stopped: {second}")


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Disable Python's garbage collector, which may interrupt a tick for many milliseconds."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@dataclass(frozen=True)
class _RequestedChunk:
    """A chunk that has not been added to the plan yet, and the tick at which it was requested."""

    tick: int
    chunk: Future[Any]


@dataclass(frozen=True)
class _SentObservation:
    """An observation that is not known to be in the memory, and when it was sent."""

    at: float
    observation: RobotObservation
    confirmed: Future[int]


class _Loop:
    """The state of a running episode; `tick` carries out one tick."""

    def __init__(
        self,
        robot: Robot,
        session: Session,
        settings: LoopSettings,
        limits: Limits,
        period: float,
        report: EpisodeReport,
        keep_observations: bool,
    ) -> None:
        self._robot, self._session, self._settings, self._limits = robot, session, settings, limits
        self._period = robot.period or period
        self._report, self._timings = report, report.timings
        self._keep_observations = keep_observations
        self.ticks = 0
        """Number of observations that were sent."""
        self.remembered = 0
        """Number of observations in the memory, by the server's own count."""
        self._unconfirmed: deque[_SentObservation] = deque()
        self._begin_plan()
        self._observed_at: dict[int, float] = {}
        """Times of observations from which no action has been carried out yet, by tick."""

    def _begin_plan(self) -> None:
        self._plan = Plan(executed=self._settings.executed, blend=self._settings.blend)
        self._requested: _RequestedChunk | None = None
        self._last_action: Array | None = None

    def go_on(self, session: Session) -> None:
        """Go on in a session on another connection, where the robot was stopped.

        Actions are planned anew from where the robot is.
        """
        lacking = self.ticks - session.ticks
        if lacking > len(self._unconfirmed):
            raise StoppedError(f"the memory lost {lacking - len(self._unconfirmed)} observations")
        while len(self._unconfirmed) > lacking:
            self._unconfirmed.popleft()
        self._session, self.remembered = session, session.ticks
        # an observation on which no action followed has no place in a recording
        del self._report.observations[len(self._report.actions) :]
        self._begin_plan()

    def send_lacking(self) -> None:
        """Send once more what was sent on a connection that was lost, and is not in the memory."""
        for index, sent in enumerate(self._unconfirmed):
            self._unconfirmed[index] = self._sent(sent.observation)

    def _sent(self, observation: RobotObservation) -> _SentObservation:
        now = time.perf_counter()
        future = _from_server(
            lambda: self._session.observe_soon(**observation.arrays(self._settings.views))
        )
        future.add_done_callback(_timer(self._timings.observe, now))
        return _SentObservation(now, observation, future)

    def tick(self) -> None:
        """Carry out one tick."""
        tick, observation = self.ticks, self._robot.observe()
        now = time.perf_counter()
        if self._keep_observations:
            self._report.observations.append(observation)
        self._check_memory(now)
        self._unconfirmed.append(self._sent(observation))
        self.ticks += 1
        self._add_chunk(tick)
        if self._requested is None and self._plan.due(tick):
            self._request(tick, now)
            self._add_chunk(tick)
        self._move(tick)

    def wait_for_memory(self) -> None:
        """Wait until the memory has all observations."""
        while self._unconfirmed:
            wait([self._unconfirmed[0].confirmed], self._settings.timeout)
            self._check_memory(time.perf_counter())

    def _check_memory(self, now: float) -> None:
        """Read the server's replies, in order; an error or a long silence stops the robot."""
        while self._unconfirmed and self._unconfirmed[0].confirmed.done():
            self.remembered = _from_server(self._unconfirmed[0].confirmed.result)
            self._unconfirmed.popleft()
        if self._unconfirmed and now - self._unconfirmed[0].at > self._settings.timeout:
            seconds = f"{self._settings.timeout:g} s (--timeout)"
            raise StoppedError(f"the server has not taken in an observation for {seconds}")

    def _request(self, tick: int, now: float) -> None:
        chunk = _from_server(lambda: self._session.act_soon(steps=self._settings.steps))
        chunk.add_done_callback(_timer(self._timings.chunk, now))
        self._requested, self._observed_at[tick] = _RequestedChunk(tick, chunk), now
        self._plan.note_request(tick)
        wait([chunk], min(self._settings.patience, self._settings.timeout))

    def _add_chunk(self, tick: int) -> None:
        """Add the requested chunk to the plan if it has arrived."""
        if self._requested is not None and self._requested.chunk.done():
            chunk = _from_server(self._requested.chunk.result)
            self._plan.add(chunk, self._requested.tick, tick)
            self._requested = None

    def _move(self, tick: int) -> None:
        """Send the planned action within the limits; without one, hold still."""
        planned = self._plan.at(tick)
        if planned is None:
            action = self._robot.hold()
            self._timings.idle += bool(self._timings.end_to_end)
        else:
            before = self._robot.hold() if self._last_action is None else self._last_action
            try:
                action, limited = self._limits.apply(planned[0], before, self._period)
            except ValueError as error:
                raise StoppedError(f"the policy's {error}") from error
            self._timings.limited += limited
        self._last_action = np.asarray(action, np.float32)
        # a robot that cannot read its own place has no finite one to hold or to start from
        if not np.isfinite(self._last_action).all():
            raise StoppedError(
                f"the action would be {self._last_action.tolist()}, which is not finite; check the "
                "robot's sensors"
            )
        if planned is not None and planned[1] in self._observed_at:
            delay = time.perf_counter() - self._observed_at.pop(planned[1])
            self._timings.end_to_end.append(delay)
        self._report.actions.append(self._last_action)
        self._robot.send(self._last_action)


def _timer(delays: list[float], since: float) -> Callable[[Future[Any]], None]:
    """Return a callback that appends the delay of a reply, unless the reply is an error."""

    def note(reply: Future[Any]) -> None:
        if reply.exception() is None:
            delays.append(time.perf_counter() - since)

    return note


def _from_server(call: Callable[[], T]) -> T:
    """Return the result of a call to the server; any error of it stops the robot."""
    try:
        return call()
    except ConnectionError as error:
        raise LostError(f"{type(error).__name__}: {error}") from error
    except Exception as error:
        raise StoppedError(f"{type(error).__name__}: {error}") from error
