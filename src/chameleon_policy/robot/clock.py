"""Ticks at a fixed rate."""

from __future__ import annotations

import time
from collections.abc import Callable


class Clock:
    """Tick n is due n periods after the first one. A tick that comes a whole period late has taken
    another's place.

    Ticks that were missed are counted and not made up for in a burst: the schedule moves on by as
    many periods.
    """

    def __init__(
        self,
        rate: float,
        *,
        now: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        if not 0 < rate <= 1000:
            raise ValueError(
                f"--rate must be a number of ticks per second between 0 and 1000, got {rate:g}"
            )
        self.period = 1 / rate
        self.missed = 0
        """Periods in which no tick began."""
        self.lateness: list[float] = []
        """Of every tick, in seconds."""
        self._now, self._sleep = now, sleep
        self._due: float | None = None

    def tick(self) -> float:
        """Wait until the next tick is due; returns when it began."""
        if self._due is None:
            self._due = self._now()
        while (early := self._due - self._now()) > 0:
            self._sleep(early)
        began = self._now()
        late = began - self._due
        skipped = int(late / self.period)
        self.missed += skipped
        self.lateness.append(late)
        self._due += (skipped + 1) * self.period
        return began
