"""Signals that stop a run after its current step: SIGTERM, Ctrl-C and a terminal that closes."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any, Self


class StopRequest:
    """The first of these signals since the context was entered; a second one acts as usual."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        # Python lets only the main thread handle signals.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                # nohup ignores SIGHUP, and it has to stay ignored
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._handle)
        return self

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.signal = number
        self._restore_handlers()

    def _restore_handlers(self) -> None:
        while self._before:
            number, handler = self._before.popitem()
            signal.signal(number, handler)

    def __exit__(self, *_: object) -> None:
        self._restore_handlers()
