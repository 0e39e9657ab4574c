"""Prospectiveness (Appendix F.3): how early before a decision can be read from h what will be
chosen there?

The label is the place that the robot acts on next: the plate, the cup, the next seasoning. At every
time relative to a decision a linear probe is fitted to some demonstrations and asked about the
others; each decision of an episode counts. The trace window is the same probe on the last layer's
traces, all of them, in place of h. What a linear probe cannot read may still be there: an action
head is not linear.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from chameleon_policy.probes.representations import WINDOW, Episode, Material, readable_share
from chameleon_policy.rates import Rate

THRESHOLD = 0.8
"""Accuracy that counts as ready."""
Line = list[tuple[int, Rate]]
Read = Callable[..., list[tuple[Tensor | None, int]]]
"""Episode and time relative to its decisions -> for each of them the numbers to read from, if there
is such a step, and the answer.
"""


@dataclass(frozen=True)
class Prospectiveness:
    """How often the next choice is read rightly, over time relative to its decision."""

    chance: float
    working: Line
    traces: Line

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        lines = {"working": self.working, "traces": self.traces}
        return {
            "chance": self.chance,
            "threshold": THRESHOLD,
            **{
                name: [{"step": step, **rate.as_dict()} for step, rate in line]
                for name, line in lines.items()
            },
        }


def prospectiveness(material: Material) -> Prospectiveness:
    """Fit a probe at every time, and ask it."""
    every = range(WINDOW.start, WINDOW.stop)
    return Prospectiveness(
        1 / material.choices, _line(material, _working, every), _line(material, _traces, WINDOW)
    )


def ready(line: Sequence[Mapping[str, Any]], threshold: float = THRESHOLD) -> int | None:
    """The earliest time from which on the accuracy stays at the threshold or above until the
    decision; or else the first time after the decision at which it is there, or None. `line` is one
    of those of `Prospectiveness.as_dict`.
    """
    values = {point["step"]: point["value"] for point in line}
    found = None
    for step in sorted((step for step in values if step <= 0), reverse=True):
        if values[step] < threshold:
            break
        found = step
    late = [step for step in sorted(values) if step > 0 and values[step] >= threshold]
    return found if found is not None else late[0] if late else None


def lead(one: int | None, other: int | None) -> int | None:
    """How many steps earlier the first is ready; None where one of them never is."""
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


def _line(material: Material, read: Read, steps: range) -> Line:
    rates = {step: readable_share(material, partial(read, step=step)) for step in steps}
    return [(step, rate) for step, rate in rates.items() if rate is not None]
