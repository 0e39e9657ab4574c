"""Chameleon: a visuomotor policy with memory, its benchmark, baselines and tools."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chameleon_policy.kernels import FastControl as FastControl
    from chameleon_policy.kernels import fuse as fuse
    from chameleon_policy.policy import *  # noqa: F403

__version__ = "0.1.0"

FROM_KERNELS = ("FastControl", "fuse")


def __getattr__(name: str) -> Any:
    """Import the policy on first use of its names, so that the benchmark starts without torch."""
    if name in FROM_KERNELS:
        return getattr(importlib.import_module("chameleon_policy.kernels"), name)
    if name == "__all__" or not name.startswith("_"):
        policy = importlib.import_module("chameleon_policy.policy")
        if name == "__all__":
            return [*policy.__all__, *FROM_KERNELS]
        if name in policy.__all__:
            return getattr(policy, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
