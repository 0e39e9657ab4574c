"""Environments in worker processes, stepped together: one message to each per control step.

A worker that dies or freezes is replaced. Seed and actions of an episode give the same episode
again, so that another process takes it up where the first one left it.
"""

from __future__ import annotations

import multiprocessing
import signal
import threading
import time
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Self

import numpy as np

from chameleon_policy.suite import Answer, Environment, EnvironmentSettings, EpisodeResult

RESTARTS = 3
"""Times that a worker is replaced before the evaluation is given up."""
BEAT_SECONDS = 1.0
"""Time between two heartbeats of a worker, which come from a thread of its own: an episode or a
control step may take as long as it likes.
"""
SILENT_BEATS = 300
"""A worker without so many heartbeats is frozen. They are counted, not timed: a stop of the whole
evaluation (Ctrl-Z, a suspended machine) or a change of the clock counts as one.
"""
CLOSING_SECONDS = 10.0
"""Time that a worker has to end."""


@dataclass(frozen=True, eq=False)
class Tick:
    """Observation and result of an environment after a control step."""

    observation: dict[str, Any]
    decision: bool
    """Whether a decision is due: chunks planned before it are dropped."""
    played: EpisodeResult | None
    """Result of a finished episode."""


Begin = tuple[int, Answer | None]
"""Seed of an episode, and its answer; None: the seed decides it."""
Order = Mapping[int, Begin | np.ndarray]
"""Slot -> the episode to begin, or an action."""


class EnvPool:
    """Pool of `slots` environments in `workers` processes; without workers, in this process."""

    def __init__(self, settings: EnvironmentSettings, slots: int, workers: int) -> None:
        if slots < 1 or workers < 0:
            raise ValueError(
                "expected at least one environment and no negative number of workers, "
                f"got {slots} and {workers}"
            )
        settings.make_env().close()  # a wrong dial is refused here, with its own message
        self.slots, self._settings = slots, settings
        self._local = _Environments(settings)
        self._workers = [_Worker(settings) for _ in range(min(workers, slots))]
        self._closed = threading.Event()
        self._watchdog = threading.Thread(target=self._watch, daemon=True)
        self._watchdog.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def advance(self, order: Order) -> dict[int, Tick]:
        """Begin episodes and take control steps; return the tick of every slot in the order."""
        if not self._workers:
            return self._local.advance(order)
        shares: list[dict[int, Begin | np.ndarray]] = [{} for _ in self._workers]
        for slot, entry in order.items():
            shares[slot % len(shares)][slot] = entry
        busy = [pair for pair in zip(self._workers, shares, strict=True) if pair[1]]
        for worker, share in busy:
            worker.send(share)
        ticks: dict[int, Tick] = {}
        for worker, share in busy:
            ticks |= worker.receive(share)
        return ticks

    def close(self) -> None:
        """End the processes and free the environments."""
        self._closed.set()
        self._watchdog.join()
        self._local.close()
        for worker in self._workers:
            worker.close()
        for worker in self._workers:
            worker.join()
        self._workers = []

    def _watch(self) -> None:
        while not self._closed.wait(BEAT_SECONDS):
            for worker in self._workers:
                worker.end_if_frozen()


_Answer = dict[int, Tick] | Exception


class _Worker:
    """A process, and the episodes that it plays, for another process to take them up."""

    def __init__(self, settings: EnvironmentSettings) -> None:
        self._settings = settings
        self._episodes: dict[int, list[Begin | np.ndarray]] = {}
        """Slot -> beginning and actions of its episode."""
        self._restarts = 0
        self._start()

    def _start(self) -> None:
        # `spawn`: an OpenGL context does not survive a fork
        context = multiprocessing.get_context("spawn")
        self._beats = context.RawValue("Q")
        self._beats_seen = self._silent = 0
        self._pipe, theirs = context.Pipe()
        process = context.Process(
            target=_serve, args=(theirs, self._settings, self._beats), daemon=True
        )
        process.start()
        theirs.close()
        self.process = process

    def send(self, share: Order) -> None:
        """Send the order of the next control step."""
        for slot, entry in share.items():
            if not isinstance(entry, np.ndarray):
                self._episodes[slot] = []
            self._episodes[slot].append(entry)
        with suppress(OSError):  # the process is dead; `receive` replaces it
            self._pipe.send(share)

    def receive(self, share: Order) -> dict[int, Tick]:
        """Return the ticks of the order that was sent, if need be from another process."""
        answer: _Answer
        try:
            answer = self._pipe.recv()
        except (EOFError, OSError):
            answer = self._replace()
        if isinstance(answer, Exception):
            raise answer
        for slot in share:
            if answer[slot].played is not None:
                del self._episodes[slot]
        return {slot: answer[slot] for slot in share}

    def _replace(self) -> _Answer:
        """Play the episodes in another process as far as they had come; return its last answer."""
        for _ in range(RESTARTS - self._restarts):
            self._restarts += 1
            warnings.warn(
                "an evaluation process died or froze (killed, or out of memory?); another one "
                "plays its episodes again",
                stacklevel=2,
            )
            self.close()
            self.join()
            self._start()
            with suppress(EOFError, OSError):
                return self._play_again()
        raise OSError(
            f"an evaluation process died, and so did {RESTARTS} in its place (killed, or out of "
            "memory?); run the evaluation again with fewer --workers, or a smaller --parallel"
        )

    def _play_again(self) -> _Answer:
        ticks: dict[int, Tick] = {}
        for turn in range(max(map(len, self._episodes.values()))):
            orders = {slot: each[turn] for slot, each in self._episodes.items() if turn < len(each)}
            self._pipe.send(orders)
            answer: _Answer = self._pipe.recv()
            if isinstance(answer, Exception):
                return answer
            for slot, tick in answer.items():
                over = turn + 1 == len(self._episodes[slot])
                assert over or tick.played is None, "the episode ended earlier this time"
            ticks |= answer
        return ticks

    def end_if_frozen(self) -> None:
        """Kill the process if its heartbeats have failed to come; called once for each beat."""
        beats = self._beats.value
        self._silent = 0 if beats != self._beats_seen else self._silent + 1
        self._beats_seen = beats
        if self._silent >= SILENT_BEATS:
            self.process.kill()  # its pipe ends, and with it the waiting in `receive`

    def close(self) -> None:
        """Let the process end: it reads the end of its pipe."""
        self._pipe.close()

    def join(self) -> None:
        """Wait for the end of the process; kill one that does not end."""
        self.process.join(timeout=CLOSING_SECONDS)
        self.process.kill()
        self.process.join()


class _Environments:
    """Environments of one process, made when they are first used."""

    def __init__(self, settings: EnvironmentSettings) -> None:
        self._settings = settings
        self._envs: dict[int, Environment] = {}

    def advance(self, order: Order) -> dict[int, Tick]:
        return {slot: self._advance(slot, entry) for slot, entry in order.items()}

    def _advance(self, slot: int, entry: Begin | np.ndarray) -> Tick:
        if slot not in self._envs:
            self._envs[slot] = self._settings.make_env()
        return environment_tick(self._envs[slot], entry)

    def close(self) -> None:
        for env in self._envs.values():
            env.close()
        self._envs = {}


def environment_tick(env: Environment, entry: Begin | np.ndarray) -> Tick:
    """Begin an episode or take a control step; return what the environment shows then."""
    if isinstance(entry, np.ndarray):
        observation, _, terminated, truncated, info = env.step(entry)
        over = terminated or truncated
    else:
        seed, z = entry
        options = None if z is None else {"z": z}
        (observation, info), over = env.reset(seed=seed, options=options), False
    return Tick(observation, bool(info.get("decision")), env.result() if over else None)


def _serve(pipe: Connection, settings: EnvironmentSettings, beats: Any) -> None:
    # signals are for the parent, which may want to save, and then closes its end of the pipe
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_beat, args=(beats,), daemon=True).start()
    environments = _Environments(settings)
    while True:
        try:
            order = pipe.recv()
        except (EOFError, ConnectionResetError):
            break
        try:
            pipe.send(environments.advance(order))
        except BrokenPipeError:
            break
        except Exception as error:  # raised by the parent
            pipe.send(error)
    environments.close()


def _beat(beats: Any) -> None:
    while True:
        beats.value += 1
        time.sleep(BEAT_SECONDS)
