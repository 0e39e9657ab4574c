"""A toy robot for tests of the loop, sessions in this process, and a pool without decisions."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from chameleon_policy.evaluate.pool import EnvPool, Order, Tick
from chameleon_policy.policy import Observation, VisuomotorPolicy
from chameleon_policy.robot.robot import Array, RobotObservation


class ToyRobot:
    """A robot of two numbers, which reaches every action at once; its camera shows the tick."""

    name, instruction, period = "toy", "move", None
    action_names = state_names = ("x", "y")

    def __init__(self, length: int) -> None:
        self.length = length
        self.sent: list[Array] = []
        self.stopped = 0
        self._position = np.zeros(2, np.float32)

    def begin(self, episode: int) -> None:
        self.sent = []

    def observe(self) -> RobotObservation:
        image = np.full((16, 16, 3), len(self.sent), np.uint8)
        return RobotObservation(proprioception=self._position, images={"front": image})

    def hold(self) -> Array:
        return self._position

    def send(self, action: Array) -> None:
        self.sent.append(action)
        self._position = action

    @property
    def over(self) -> bool:
        return len(self.sent) >= self.length

    def stop(self) -> None:
        self.stopped += 1

    def close(self) -> None:
        pass


class LateSession:
    """A session whose chunk number n consists of n and arrives `delay` ticks after its request."""

    def __init__(self, delay: int, horizon: int = 8) -> None:
        self.delay, self.horizon = delay, horizon
        self.seen: list[Array] = []
        self.asked: list[int] = []
        self._open: list[tuple[int, Future[Any]]] = []

    @property
    def ticks(self) -> int:
        return len(self.seen)

    def observe_soon(self, **arrays: Any) -> Future[int]:
        self.seen.append(arrays["proprioception"])
        for due, future in self._open:
            if len(self.seen) > due and not future.done():
                number = [each for _, each in self._open].index(future)
                future.set_result(np.full((self.horizon, 2), number, np.float32))
        return done(len(self.seen))

    def act_soon(self, *, steps: int | None = None) -> Future[Any]:
        self.asked.append(len(self.seen) - 1)
        future: Future[Any] = Future()
        self._open.append((len(self.seen) - 1 + self.delay, future))
        if not self.delay:
            future.set_result(np.full((self.horizon, 2), len(self._open) - 1, np.float32))
        return future


class LocalSession:
    """A policy in this process, with the noise of an evaluation with this seed."""

    def __init__(self, policy: VisuomotorPolicy, seed: int) -> None:
        self._policy, self._state = policy, policy.initial_state()
        self._generator = torch.Generator().manual_seed(seed)

    @property
    def ticks(self) -> int:
        return int(self._state.steps)

    def observe_soon(self, **arrays: Any) -> Future[int]:
        self._state = self._policy.observe(Observation.single(**arrays), self._state)
        return done(int(self._state.steps))

    def act_soon(self, *, steps: int | None = None) -> Future[Any]:
        features = self._policy.features
        noise = torch.randn((1, features.horizon, features.action), generator=self._generator)
        return done(self._policy.act(self._state, steps=steps, source=noise)[0].numpy())


def done(value: Any) -> Future[Any]:
    """Return a future with this result."""
    future: Future[Any] = Future()
    future.set_result(value)
    return future


class PoolWithoutDecisions(EnvPool):
    """Environments that never say that a decision is due, as no robot does."""

    def advance(self, order: Order) -> dict[int, Tick]:
        ticks = super().advance(order)
        return {slot: replace(tick, decision=False) for slot, tick in ticks.items()}
