"""Executors: from chunks of actions to one action at every control step.

An executor says when a chunk is due, takes it in, and returns actions one by one. A policy plans
chunks and knows nothing of how they are carried out. Actions are NumPy arrays or tensors of any
shape. On a robot, where chunks arrive late, `robot.plan` takes the place of an executor.
"""

from __future__ import annotations

import math
import operator
from collections import deque
from collections.abc import Iterable
from typing import Any, Protocol


class ChunkedPolicy(Protocol):
    """A policy that says how its chunks should be carried out."""

    @property
    def executed(self) -> int:
        """Actions of a chunk to carry out before the next one is due."""

    @property
    def temporal_ensemble(self) -> float | None:
        """Growth of a chunk's weight with its age; None: only the newest chunk counts."""


class Executor:
    """A queue: the first `executed` actions of a chunk are carried out, then the next is due."""

    def __init__(self, executed: int) -> None:
        if executed < 1:
            raise ValueError(f"executed: expected at least 1 action of a chunk, got {executed}")
        self._executed = executed
        self._queue: deque[Any] = deque()

    @property
    def chunk_due(self) -> bool:
        """Whether a chunk must be added before the next action."""
        return not self._queue

    def add(self, chunk: Iterable[Any]) -> None:
        """Add a chunk (H ...) whose first action is meant for the coming control step."""
        self._queue = deque([*chunk][: self._executed])

    def next_action(self) -> Any:
        """Return the action of the coming control step; IndexError if a chunk is due."""
        return self._queue.popleft()

    def clear(self) -> None:
        """Forget all chunks."""
        self._queue.clear()


class TemporalEnsemble(Executor):
    """The mean of all chunks that reach a control step, weighted by exp(growth x age).

    This is ACT's temporal ensemble (Zhao et al., 2023). A chunk is due after every `executed`
    actions, and its age counts control steps. With `executed` = 1 and growth m the weights are
    proportional to those of the paper, exp(-m i) for the i-th chunk, beginning with the oldest.
    """

    def __init__(self, executed: int, growth: float) -> None:
        super().__init__(executed)
        self._growth = growth
        self._step = 0
        self._chunks: list[tuple[int, list[Any]]] = []
        """The step from which on a chunk counts, and its actions."""

    @property
    def chunk_due(self) -> bool:
        """Whether a chunk must be added before the next action."""
        return not self._chunks or self._step - self._chunks[-1][0] >= self._executed

    def add(self, chunk: Iterable[Any]) -> None:
        """Add a chunk (H ...) whose first action is meant for the coming control step."""
        self._chunks.append((self._step, [*chunk]))

    def next_action(self) -> Any:
        """Return the weighted mean of what the chunks plan for the coming control step."""
        step = self._step
        self._chunks = [
            (start, actions) for start, actions in self._chunks if step < start + len(actions)
        ]
        weights = [math.exp(self._growth * (step - start)) for start, _ in self._chunks]
        planned = [actions[step - start] for start, actions in self._chunks]
        self._step += 1
        return sum(map(operator.mul, weights, planned)) / sum(weights)

    def clear(self) -> None:
        """Forget all chunks."""
        self._chunks.clear()


def make_executor(policy: ChunkedPolicy, executed: int | None = None) -> Executor:
    """Return a new executor of the kind that a policy needs.

    `executed` takes the place of the policy's own number of actions.
    """
    executed = policy.executed if executed is None else executed
    growth = policy.temporal_ensemble
    return Executor(executed) if growth is None else TemporalEnsemble(executed, growth)
