"""Every published number is a JSON file that says which command, seeds, hardware and revision made
it.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

PROCESS_START = time.time()


def hardware() -> dict[str, Any]:
    """The machine, in the words that matter for a timing."""
    description: dict[str, Any] = {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
    }
    if torch.cuda.is_available():
        description["gpu"] = torch.cuda.get_device_name()
    return description


def software() -> dict[str, str]:
    """What the code ran on."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": sys.platform,
    }


@cache
def git_revision() -> str:
    """The commit of the working tree, with `-dirty` behind it if files were changed; `unknown`
    outside a checkout.

    As it was when a process asked first: the result that it writes does not count as a change.

    A copy without its history (a container, a cluster job) takes it from the variable GIT_REVISION.
    """
    if os.environ.get("GIT_REVISION"):
        return os.environ["GIT_REVISION"]
    here = Path(__file__).parent
    try:
        revision = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"],
            cwd=here,
            capture_output=True,
            text=True,
        )
    except FileNotFoundError:
        return "unknown"
    return revision.stdout.strip() or "unknown"


def write_result(path: Path, result: dict[str, Any], command: str, seeds: Sequence[int]) -> None:
    """Write `result` with its provenance to `path`."""
    document = {
        "command": command,
        "seeds": list(seeds),
        "hardware": hardware(),
        "software": software(),
        "git_revision": git_revision(),
        "duration_s": round(time.time() - PROCESS_START, 1),
        "result": result,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.unfinished")
    unfinished.write_text(json.dumps(document, indent=2) + "\n")
    unfinished.replace(path)  # whole or not at all


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
