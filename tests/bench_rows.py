"""Rows as a bench writes them."""

from __future__ import annotations

from typing import Any

from chameleon_policy.report.comparison.outcomes import rates

ALL = ["clean-plate", "shell-game", "seasonings"]


def row(
    method: str = "chameleon", task: str = "shell-game", outcomes: str = "sswf", **other: Any
) -> dict[str, Any]:
    """Return a row as a bench writes it."""
    score = rates(outcomes)
    settings = {
        "method": method,
        "task": task,
        "seed": 0,
        "preset": "small",
        "observation": "rgb",
        "told": False,
        "image_size": 128,
        "demonstrations": 120,
        "steps": 4000,
        "trained_on": ALL,
        "episodes": len(outcomes),
    }
    scores = {name: getattr(score, name).as_dict() for name in ("msr", "dsr", "sr")}
    return {
        **settings,
        **scores,
        "first_seed": 10**9,
        "outcomes": outcomes,
        "parameters": 7_123_456,
        **other,
    }
