"""Environments in worker processes, stepped together: one message to each per control step."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Self

import numpy as np

from chameleon_policy.suite import Answer, Environment, EnvironmentSettings, EpisodeResult


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
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []
        context = multiprocessing.get_context("spawn")  # an OpenGL context does not survive a fork
        for _ in range(min(workers, slots)):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, settings), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def advance(self, order: Order) -> dict[int, Tick]:
        """Begin episodes and take control steps; return the tick of every slot in the order."""
        if not self._pipes:
            return self._local.advance(order)
        shares: list[dict[int, Begin | np.ndarray]] = [{} for _ in self._pipes]
        for slot, entry in order.items():
            shares[slot % len(shares)][slot] = entry
        busy = [(pipe, share) for pipe, share in zip(self._pipes, shares, strict=True) if share]
        ticks: dict[int, Tick] = {}
        try:
            for pipe, share in busy:
                pipe.send(share)
            answers = [pipe.recv() for pipe, _ in busy]
        except (EOFError, OSError) as error:
            raise OSError(
                "an evaluation process died (killed, or out of memory?); run the evaluation again"
            ) from error
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
            ticks |= answer
        return ticks

    def close(self) -> None:
        """End the processes and free the environments."""
        self._local.close()
        for pipe in self._pipes:
            pipe.close()  # the worker reads the end of its pipe and exits
        for process in self._processes:
            process.join(timeout=10)
        self._pipes, self._processes = [], []


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


def _serve(pipe: Connection, settings: EnvironmentSettings) -> None:
    # signals are for the parent, which may want to save, and then closes its end of the pipe
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
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
