"""Chameleon: a visuomotor policy that remembers, with the benchmark, baselines and tools around it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chameleon_policy.policy import *  # noqa: F403
    from chameleon_policy.policy import __all__ as __all__

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """The names of the policy, loaded when one is used: the benchmark and its tools start without torch."""
    if name == "__all__" or not name.startswith("_"):
        policy = importlib.import_module("chameleon_policy.policy")
        if name == "__all__" or name in policy.__all__:
            return getattr(policy, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
