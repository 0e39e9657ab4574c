"""Prospectiveness (Appendix F.3): how early before a decision does h hold the next choice?

The label is the candidate that the robot acts on next: the plate, the cup, the next seasoning. At
every time relative to a decision a linear probe is fitted to some demonstrations and evaluated on
others; each decision of an episode counts. A second probe reads all traces of the last layer in
place of h. Information that a linear probe cannot read may still be used: an action head is not
linear.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from chameleon_policy.probes.representations import WINDOW, Episode, Material, probe_accuracy
from chameleon_policy.rates import Rate

THRESHOLD = 0.8
"""Accuracy that counts as ready."""
Curve = list[tuple[int, Rate]]
"""Accuracies over time relative to a decision."""
Reader = Callable[..., list[tuple[Tensor | None, int]]]
"""A function of an episode and a time relative to its decisions. For each decision it returns the
input of the probe (None where the episode has no such step) and the answer.
"""


@dataclass(frozen=True)
class Prospectiveness:
    """Accuracies of probes of the next choice, over time relative to its decision."""

    chance: float
    working: Curve
    traces: Curve

    def as_dict(self) -> dict[str, Any]:
        """Return a dictionary for JSON."""
        curves = {"working": self.working, "traces": self.traces}
        return {
            "chance": self.chance,
            "threshold": THRESHOLD,
            **{
                name: [{"step": step, **rate.as_dict()} for step, rate in curve]
                for name, curve in curves.items()
            },
        }


def prospectiveness(material: Material) -> Prospectiveness:
    """Fit and evaluate a probe at every time relative to a decision."""
    steps = range(WINDOW.start, WINDOW.stop)
    return Prospectiveness(
        1 / material.choices, _curve(material, _working, steps), _curve(material, _traces, WINDOW)
    )


def ready(curve: Sequence[Mapping[str, Any]], threshold: float = THRESHOLD) -> int | None:
    """Return the first step from which the accuracy stays above the threshold until the decision.

    Otherwise the first step after the decision that reaches it, or None. `curve` is a list from
    `Prospectiveness.as_dict`.
    """
    values = {point["step"]: point["value"] for point in curve}
    found = None
    for step in sorted((step for step in values if step <= 0), reverse=True):
        if values[step] < threshold:
            break
        found = step
    late = [step for step in sorted(values) if step > 0 and values[step] >= threshold]
    return found if found is not None else late[0] if late else None


def lead(one: int | None, other: int | None) -> int | None:
    """Return how many steps earlier the first is ready; None if one of them never is."""
    return None if one is None or other is None else other - one


def _working(episode: Episode, step: int) -> list[tuple[Tensor | None, int]]:
    rows = (episode.working_at(decision + step) for decision in episode.decisions)
    return list(zip(rows, episode.answers, strict=True))


def _traces(episode: Episode, step: int) -> list[tuple[Tensor | None, int]]:
    rows = episode.window[:, WINDOW.index(step)].flatten(1).float()
    return [
        (None if bool(row.isnan().any()) else row, answer)
        for row, answer in zip(rows, episode.answers, strict=True)
    ]


def _curve(material: Material, read: Reader, steps: range) -> Curve:
    rates = {step: probe_accuracy(material, partial(read, step=step)) for step in steps}
    return [(step, rate) for step, rate in rates.items() if rate is not None]
