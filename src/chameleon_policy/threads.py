"""How torch's threads wait for one another.

By default they spin. Beside one other busy process, such as a camera's driver, every operation then
waits until the system takes the core from a thread that only spins. Threads that sleep while they
wait compute the same numbers and lose nothing on an idle machine (docs/performance.md).
"""

from __future__ import annotations

import os

VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
"""Variables that say how threads wait, of OpenMP and of its two runtimes (GNU's and LLVM's)."""


def wait_asleep() -> None:
    """Let torch's threads, and those of processes started later, sleep while they wait.

    OpenMP reads the variable when torch is imported: call it before. What the user set is kept.
    """
    if not any(name in os.environ for name in VARIABLES):
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
