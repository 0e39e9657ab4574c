"""The memory of this machine, compared with what a dataset asks for."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


def machine_memory() -> int:
    """Return the bytes of memory that this process may use at most."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    limits += [limit for limit in resource.getrlimit(resource.RLIMIT_AS) if limit >= 0]
    with suppress(OSError, ValueError):  # no container, or one without a limit
        limits.append(int(CGROUP_LIMIT.read_text()))
    return min(limits)


def gigabytes(nbytes: float) -> str:
    """Return a number of bytes as people read it."""
    return f"{nbytes / 1e9:,.1f} GB" if nbytes >= 1e8 else f"{nbytes / 1e6:,.1f} MB"


@contextmanager
def full_memory(remedy: str) -> Iterator[None]:
    """Turn the errors of numpy and torch when memory is full into one that names the remedy."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "can't allocate memory" not in str(error):
            raise
        raise MemoryError(
            f"the memory of this machine is full; give a smaller {remedy}: {error}"
        ) from error


def check_memory(nbytes: float, what: str, remedy: str) -> None:
    """Raise a ValueError if something needs more memory than this machine has."""
    limit = machine_memory()
    if nbytes > limit:
        raise ValueError(
            f"{what} need {gigabytes(nbytes)} of memory, and this machine has {gigabytes(limit)}; "
            f"{remedy}"
        )
