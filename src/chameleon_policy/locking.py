"""Locks that let one process at a time work in a folder."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def only_process(lock: Path, refusal: str) -> Iterator[None]:
    """Hold the file `lock`; raise FileExistsError(refusal) if another process holds it.

    The operating system releases the lock when the process ends, however it ends.
    """
    with lock.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FileExistsError(refusal) from None
        yield
