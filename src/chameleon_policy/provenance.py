"""Results as JSON files with the command, seeds, hardware and revision that produced them."""

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

from chameleon_policy.json_files import read_json_object
from chameleon_policy.writing import named, whole_file

PROCESS_START = time.monotonic()


def hardware() -> dict[str, Any]:
    """Describe the machine as far as it matters for timings."""
    description: dict[str, Any] = {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
    }
    if torch.cuda.is_available():
        description["gpu"] = torch.cuda.get_device_name()
    return description


def software() -> dict[str, str]:
    """Describe the versions of Python and torch, and the platform."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": sys.platform,
    }


@cache
def git_revision() -> str:
    """Return the commit of the working tree, with the suffix `-dirty` if files were changed.

    It is read once in a process, so that a result written later does not count as a change. In a
    copy without history (a container, a cluster job) set the variable GIT_REVISION; without either
    it is `unknown`.
    """
    if os.environ.get("GIT_REVISION"):
        return os.environ["GIT_REVISION"]
    try:
        revision = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"],  # noqa: S607  # as installed
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
        )
    except FileNotFoundError:
        return "unknown"
    return revision.stdout.strip() or "unknown"


def write_result(path: Path, result: dict[str, Any], command: str, seeds: Sequence[int]) -> None:
    """Write `result` with its provenance to `path`."""
    _write(path, {"result": result}, command, seeds)


def write_rows(
    path: Path, rows: Sequence[dict[str, Any]], command: str, seeds: Sequence[int]
) -> None:
    """Write `rows`, one for each experiment, with their provenance to `path`."""
    _write(path, {"rows": list(rows)}, command, seeds)


def _write(path: Path, content: dict[str, Any], command: str, seeds: Sequence[int]) -> None:
    document = {
        "command": command,
        "seeds": list(seeds),
        "hardware": hardware(),
        "software": software(),
        "git_revision": git_revision(),
        "duration_s": round(time.monotonic() - PROCESS_START, 1),
        **content,
    }
    with named(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as unfinished:
        unfinished.write_text(json.dumps(document, indent=2) + "\n")


def read_result(path: Path) -> dict[str, Any]:
    """Return the result in a file of `write_result`; ValueError if the file is damaged."""
    result = read_json_object(path).get("result")
    if not isinstance(result, dict):
        raise ValueError(f'{path} holds no result (no object "result"); move it away')
    return result


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
