"""Ticks at a fixed rate."""

from __future__ import annotations

import time
from collections.abc import Callable


class Clock:
    """A clock whose tick n is due n periods after the first one.

    A tick that begins a whole period late replaces the next one. Missed ticks are counted and not
    repeated in a burst: the schedule moves on by as many periods.
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
        """Seconds by which each tick began late."""
        self._now, self._sleep = now, sleep
        self._due: float | None = None

    def tick(self) -> float:
        """Wait until the next tick is due; return the time at which it began."""
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
