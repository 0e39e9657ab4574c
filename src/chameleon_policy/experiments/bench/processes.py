"""Training and evaluation as separate processes: they share a GPU, and fail alone."""

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
"""Seconds that a training run has to save itself before it is killed."""


class ProcessFailedError(ValueError):
    """A process ended with an error."""


class NoRoomError(ProcessFailedError):
    """There was not enough free memory on the GPU."""


class Processes:
    """Processes that are started, awaited, and stopped together."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._stopped = False

    def run(self, command: Sequence[str], log: Path) -> int:
        """Run a command, append its output to the log, and return its exit status."""
        log.parent.mkdir(parents=True, exist_ok=True)
        # The revision of this process: files that it has written since do not count as changes.
        environment = {**os.environ, "GIT_REVISION": git_revision()}
        with log.open("ab") as file:
            with self._turn:
                if self._stopped:
                    raise ProcessFailedError("stopped before it began")
                # In a session of its own, so that Ctrl-C reaches it once, through this process.
                process = subprocess.Popen(  # noqa: S603  # a list, without a shell
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
        """Ask every process to end, kill those that do not, and start no more."""
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
    """Return the end of a process's output in one line; `since` is where in the log it began."""
    output = log.read_bytes()[since:].decode(errors="replace") if log.exists() else ""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return " / ".join(lines[-number:]) or "no output"


def failure(status: int, log: Path, since: int) -> ProcessFailedError:
    """Return the error for a process that ended with this status."""
    kind = NoRoomError if status == NO_ROOM else ProcessFailedError
    return kind(f"exit status {status}; {log}: {last_lines(log, since)}")
