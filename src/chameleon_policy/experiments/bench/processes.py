"""Trainings and evaluations as processes of their own: they share a GPU, and none takes another
down.
"""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path

from chameleon_policy.exit_codes import NO_ROOM
from chameleon_policy.provenance import git_revision

LAST_LINES = 5
PATIENCE = 60.0
"""Seconds for a training to save itself before it is killed."""


class ProcessFailedError(ValueError):
    """A process ended with an error."""


class NoRoomError(ProcessFailedError):
    """There was not enough memory on the GPU beside everything else."""


class Processes:
    """Starts processes, waits for them, and stops all of them when asked."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._stopped = False

    def run(self, command: Sequence[str], log: Path) -> int:
        """The exit status of the command, when it is over; what it says is added to the log."""
        log.parent.mkdir(parents=True, exist_ok=True)
        # The revision of this process: results that are written meanwhile do not count as a change.
        environment = {**os.environ, "GIT_REVISION": git_revision()}
        with log.open("ab") as file:
            with self._turn:
                if self._stopped:
                    raise ProcessFailedError("stopped before it began")
                # In a session of its own: Ctrl-C reaches this process only, which passes it on
                # once.
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    env=environment,
                    start_new_session=True,
                )
                self._running.add(process)
            status = process.wait()
        with self._turn:
            self._running.discard(process)
        return status

    def stop(self) -> None:
        """Ask every process to end, and kill those that do not; none is started any more."""
        with self._turn:
            self._stopped = True
            running = list(self._running)
        for process in running:
            process.terminate()
        for process in running:
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()


def last_lines(log: Path, since: int = 0, number: int = LAST_LINES) -> str:
    """The end of what a process said, in one line; `since` is where in the log it began."""
    said = log.read_bytes()[since:].decode(errors="replace") if log.exists() else ""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return " / ".join(lines[-number:]) or "it said nothing"


def failure(status: int, log: Path, since: int) -> ProcessFailedError:
    """What to raise for a process that ended with this status."""
    kind = NoRoomError if status == NO_ROOM else ProcessFailedError
    return kind(f"exit status {status}; {log}: {last_lines(log, since)}")
