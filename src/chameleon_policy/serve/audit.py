"""Who came, who was refused and why: an audit log, and a line now and then in the server's log."""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

LOG = logging.getLogger("chameleon_policy.serve")
PAUSE = 60.0
"""Seconds between two lines about refusals: strangers can cause any number of them."""
KEPT = 1000
"""Different refusals between two reports; the addresses of further ones are not kept."""
OTHERS = "others"


class Audit:
    """A file with one JSON line for each session that is opened or closed, and for refusals.

    Lines have `time` (seconds since 1970), `event`, `peer` and, where there is one, `session`,
    `reason` and `count`. Nothing of what clients send is written but the names of their sessions.
    """

    def __init__(self, path: Path | None, *, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._refusals: Counter[tuple[str, str]] = Counter()
        self._next_report = 0.0
        # a line at a time, so that nothing is lost when the server is killed
        self._file = None if path is None else path.open("a", buffering=1, encoding="utf-8")

    def note(self, event: str, peer: str, session: str | None = None, reason: str = "") -> None:
        """Write a line."""
        self._write({"event": event, "peer": peer, "session": session, "reason": reason})

    def refuse(self, peer: str, reason: str) -> None:
        """Count a refusal; `report` writes it down."""
        known = (peer, reason) in self._refusals or len(self._refusals) < KEPT
        self._refusals[peer if known else OTHERS, reason] += 1

    def report(self, *, at_once: bool = False) -> None:
        """Write down the refusals since the last report, unless that was less than PAUSE ago."""
        if not self._refusals or (self._now() < self._next_report and not at_once):
            return
        self._next_report = self._now() + PAUSE
        by_reason: Counter[str] = Counter()
        for (peer, reason), count in self._refusals.items():
            self._write({"event": "refuse", "peer": peer, "reason": reason, "count": count})
            by_reason[reason] += count
        self._refusals.clear()
        reasons = ", ".join(f"{reason} ({count})" for reason, count in by_reason.most_common())
        LOG.warning(
            "%d connections were refused: %s; next such line in %g s at the earliest",
            by_reason.total(),
            reasons,
            PAUSE,
        )

    def close(self) -> None:
        """Write down what is left, and close the file."""
        self.report(at_once=True)
        if self._file is not None:
            self._file.close()

    def _write(self, entry: dict[str, object]) -> None:
        if self._file is None:
            return
        given = {name: value for name, value in entry.items() if value not in (None, "")}
        try:
            self._file.write(json.dumps({"time": round(self._now(), 3), **given}) + "\n")
        except OSError as error:  # a full disk must not stop robots
            LOG.error("--audit: %s; there is no audit log from here on", error)
            self._file = None
