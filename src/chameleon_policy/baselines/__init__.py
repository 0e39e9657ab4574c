"""What Chameleon is compared with: every method trains with the same loop and is evaluated by the same code."""

from __future__ import annotations

from pathlib import Path

import torch

from chameleon_policy.baselines.no_memory import NoMemoryPolicy
from chameleon_policy.policy import ChameleonPolicy, VisuomotorPolicy
from chameleon_policy.policy.saving import describe

METHODS: dict[str, type[VisuomotorPolicy]] = {kind.method: kind for kind in (ChameleonPolicy, NoMemoryPolicy)}


def method_named(name: str) -> type[VisuomotorPolicy]:
    """The class of a method, or a ValueError that lists the names."""
    if name not in METHODS:
        raise ValueError(f"there is no method {name!r}; choose one of {', '.join(METHODS)}")
    return METHODS[name]


def load_policy(path_or_hub_id: str | Path, *, device: torch.device | str = "cpu") -> VisuomotorPolicy:
    """A saved policy of any method, in eval mode."""
    directory, description = describe(path_or_hub_id)
    return method_named(description["method"]).from_pretrained(directory, device=device)


__all__ = ["METHODS", "NoMemoryPolicy", "load_policy", "method_named"]
