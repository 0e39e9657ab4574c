"""What the robot is about to do: chunks that come when they come, each action at the tick it was
meant for.
"""

from __future__ import annotations

import numpy as np

from chameleon_policy.robot.robot import Array


class Plan:
    """Actions by tick. A chunk that was asked for at tick t holds the actions of t, t + 1, ...;
    what is past is not made up.

    Where a new chunk and the old one both have an action, the first `blend` of them pass from the
    old to the new one in equal steps, so that the arm does not jerk.
    """

    def __init__(self, *, executed: int, blend: int) -> None:
        if executed < 1 or blend < 0:
            raise ValueError(
                f"expected at least 1 executed action and at least 0 to blend, got {executed} and {blend}"
            )
        self._executed, self._blend = executed, blend
        self._actions: dict[int, Array] = {}
        self._source: dict[int, int] = {}
        self._asked: int | None = None

    def due(self, tick: int) -> bool:
        """Whether a new chunk is to be asked for: the last one was asked for `executed` ticks ago,
        or there is none.
        """
        return self._asked is None or tick - self._asked >= self._executed

    def ask(self, tick: int) -> None:
        """A chunk was asked for at this tick."""
        self._asked = tick

    def drop(self) -> None:
        """What was planned must not be done any more."""
        self._actions, self._source, self._asked = {}, {}, None

    def add(self, chunk: Array, asked: int, now: int) -> None:
        """Take in the chunk that was asked for at tick `asked`; `now` is the next tick that will be
        carried out.
        """
        planned = {tick: action for tick, action in self._actions.items() if tick >= now}
        self._actions, self._source = {}, {}
        for place, action in enumerate(np.asarray(chunk, np.float32)):
            tick = asked + place
            if tick < now:
                continue
            share = min(1.0, (tick - now + 1) / (self._blend + 1))
            old = planned.get(tick)
            self._actions[tick] = action if old is None else (1 - share) * old + share * action
            self._source[tick] = asked

    def at(self, tick: int) -> tuple[Array, int] | None:
        """The action of a tick and the tick at which its chunk was asked for; None if nothing is
        planned for it.
        """
        return None if tick not in self._actions else (self._actions[tick], self._source[tick])
