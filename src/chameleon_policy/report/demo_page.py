"""The page of `chameleon demo`: two policies side by side, one with memory and one without."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from chameleon_policy.camo import Summary
from chameleon_policy.report.charts import inline_svg, learning_curves
from chameleon_policy.report.pages import Clip, render


@dataclass(frozen=True)
class Contender:
    """One of the two policies on the page."""

    name: str
    summary: Summary
    metrics: Sequence[dict[str, Any]]
    """Lines of metrics.jsonl."""
    clips: Sequence[Clip]

    @property
    def training(self) -> str:
        """How long it was trained, in words; empty without metrics."""
        if not self.metrics:
            return ""
        last = self.metrics[-1]
        return f"{last['seconds'] / 60:.1f} minutes ({last['step']:,} steps)"


@dataclass(frozen=True)
class ShippedResult:
    """The shipped policy's episodes of one task."""

    task: str
    instruction: str
    right: int
    episodes: int
    clip: Clip


def demo_page(
    task: str,
    instruction: str,
    contenders: Sequence[Contender],
    facts: Sequence[str],
    shipped: Sequence[ShippedResult] = (),
) -> str:
    """Return a page that opens without a network: scores, learning curves, clips.

    Facts are plain text, in which words between backticks become code.
    """
    return render(
        "demo.html",
        title="Chameleon: memory against chance",
        task=task,
        instruction=instruction,
        contenders=contenders,
        curves=[
            inline_svg(chart)
            for chart in learning_curves({each.name: each.metrics for each in contenders})
        ],
        shipped=shipped,
        facts=facts,
    )
