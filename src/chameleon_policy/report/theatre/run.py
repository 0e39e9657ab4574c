"""What the report shows of a run beside the theatre."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from chameleon_policy.camo.scoring import Summary
from chameleon_policy.report.demo_page import Clip


@dataclass(frozen=True, eq=False)
class RunReport:
    """One run: its scores, how it learned, what it looks like, and what probes found in it."""

    name: str
    method: str
    preset: str
    parameters: int
    scores: Mapping[str, Summary]
    """By task."""
    metrics: Sequence[dict[str, Any]] = ()
    """Lines of metrics.jsonl; empty for a policy that came without them."""
    clips: Sequence[Clip] = ()
    """Successes and failures."""
    figures: Mapping[str, str] = field(default_factory=dict)
    """Caption -> SVG of a probe."""
