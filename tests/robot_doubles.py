"""Robots and sessions for tests of the loop: one records what it is told, the other computes in
this process.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import numpy as np
import torch

from chameleon_policy.policy import Observation, VisuomotorPolicy
from chameleon_policy.robot.robot import Array, Sight


class ToyRobot:
    """Two numbers; it is where it was told to be. Its first camera shows the tick."""

    name, instruction, period = "toy", "move", None
    action_names = state_names = ("x", "y")

    def __init__(self, length: int, decisions: tuple[int, ...] = ()) -> None:
        self.length, self.decisions = length, decisions
        self.sent: list[Array] = []
        self.stopped = 0
        self._place = np.zeros(2, np.float32)

    def begin(self, episode: int) -> None:
        self.sent = []

    def observe(self) -> Sight:
        tick = len(self.sent)
        picture = np.full((16, 16, 3), tick, np.uint8)
        return Sight(
            proprioception=self._place, images={"front": picture}, decision=tick in self.decisions
        )

    def hold(self) -> Array:
        return self._place

    def send(self, action: Array) -> None:
        self.sent.append(action)
        self._place = action

    @property
    def over(self) -> bool:
        return len(self.sent) >= self.length

    def stop(self) -> None:
        self.stopped += 1

    def close(self) -> None:
        pass


class LateSession:
    """Its chunk number n is n, n, ... and comes after `delay` further ticks."""

    def __init__(self, delay: int, horizon: int = 8) -> None:
        self.delay, self.horizon = delay, horizon
        self.ticks: list[Array] = []
        self.asked: list[int] = []
        self._open: list[tuple[int, Future[Any]]] = []

    def observe_soon(self, *, decision: bool = False, **arrays: Any) -> Future[int]:
        self.ticks.append(arrays["proprioception"])
        for due, future in self._open:
            if len(self.ticks) > due and not future.done():
                number = [each for _, each in self._open].index(future)
                future.set_result(np.full((self.horizon, 2), number, np.float32))
        return done(len(self.ticks))

    def act_soon(self, *, steps: int | None = None) -> Future[Any]:
        self.asked.append(len(self.ticks) - 1)
        future: Future[Any] = Future()
        self._open.append((len(self.ticks) - 1 + self.delay, future))
        if not self.delay:
            future.set_result(np.full((self.horizon, 2), len(self._open) - 1, np.float32))
        return future


class LocalSession:
    """A policy in this process, with the noise that an evaluation of this seed has."""

    def __init__(self, policy: VisuomotorPolicy, seed: int) -> None:
        self._policy, self._state = policy, policy.initial_state()
        self._generator = torch.Generator().manual_seed(seed)

    def observe_soon(self, *, decision: bool = False, **arrays: Any) -> Future[int]:
        if decision:
            self._state = self._policy.drop_plans(self._state, [0])
        self._state = self._policy.observe(Observation.single(**arrays), self._state)
        return done(int(self._state.steps))

    def act_soon(self, *, steps: int | None = None) -> Future[Any]:
        features = self._policy.features
        noise = torch.randn((1, features.horizon, features.action), generator=self._generator)
        return done(self._policy.act(self._state, steps=steps, source=noise)[0].numpy())


def done(value: Any) -> Future[Any]:
    """A future that has come."""
    future: Future[Any] = Future()
    future.set_result(value)
    return future
