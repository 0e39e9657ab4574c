"""The actions that a robot is about to carry out, from chunks that arrive late."""

from __future__ import annotations

import numpy as np

from chameleon_policy.robot.robot import Array


class Plan:
    """Planned actions by tick.

    A chunk that was requested at tick t holds the actions of t, t + 1, ...; actions whose tick has
    passed are skipped. Where both a new chunk and the old ones have an action, the first `blend`
    actions go over from the old to the new in equal steps, so that the arm does not jerk.
    A policy's temporal ensemble (ACT) is not used: it needs every chunk at the tick of its request.
    """

    def __init__(self, *, executed: int, blend: int) -> None:
        if executed < 1 or blend < 0:
            raise ValueError(
                "expected at least 1 executed action and at least 0 to blend, "
                f"got {executed} and {blend}"
            )
        self._executed, self._blend = executed, blend
        self._actions: dict[int, Array] = {}
        self._source: dict[int, int] = {}
        self._requested: int | None = None

    def due(self, tick: int) -> bool:
        """Return whether to request a chunk: the last request is `executed` ticks ago, or none."""
        return self._requested is None or tick - self._requested >= self._executed

    def note_request(self, tick: int) -> None:
        """Note that a chunk was requested at this tick."""
        self._requested = tick

    def add(self, chunk: Array, requested: int, now: int) -> None:
        """Take in the chunk (H A) that was requested at a tick; `now` is the coming tick."""
        planned = {tick: action for tick, action in self._actions.items() if tick >= now}
        self._actions, self._source = {}, {}
        for tick, action in enumerate(np.asarray(chunk, np.float32), start=requested):
            if tick < now:
                continue
            share = min(1.0, (tick - now + 1) / (self._blend + 1))
            old = planned.get(tick)
            self._actions[tick] = action if old is None else (1 - share) * old + share * action
            self._source[tick] = requested

    def at(self, tick: int) -> tuple[Array, int] | None:
        """Return the action of a tick and the tick of its chunk's request, or None."""
        return None if tick not in self._actions else (self._actions[tick], self._source[tick])
