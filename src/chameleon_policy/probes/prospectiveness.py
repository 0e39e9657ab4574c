"""Prospectiveness (Appendix F.3): how early before a decision can be read from h what will be chosen there?

The label is the place that the robot acts on next: the plate, the cup, the next seasoning. At every time relative to a
decision a linear probe is fitted to some demonstrations and asked about the others; each decision of an episode counts. The
trace window is the same probe on the last layer's traces, all of them, in place of h. What a linear probe cannot read may
still be there: an action head is not linear.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from chameleon_policy.camo.scoring import Rate
from chameleon_policy.probes.linear import LinearProbe
from chameleon_policy.probes.representations import WINDOW, Episode, Material

THRESHOLD = 0.8
"""Accuracy that counts as ready."""
Line = list[tuple[int, Rate]]
Read = Callable[[Episode, int, int], Tensor | None]
"""Episode, number of the decision, time relative to it -> the numbers to read from, if the episode has such a step."""


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
            "chance": self.chance, "threshold": THRESHOLD,
            **{name: [{"step": step, **rate.as_dict()} for step, rate in line] for name, line in lines.items()},
        }  # fmt: skip


def prospectiveness(material: Material) -> Prospectiveness:
    """Fit a probe at every time, and ask it."""
    every = range(WINDOW.start, WINDOW.stop)
    return Prospectiveness(1 / material.choices, _line(material, _working, every), _line(material, _traces, WINDOW))


def ready(line: Sequence[Mapping[str, Any]], threshold: float = THRESHOLD) -> int | None:
    """The earliest time from which on the accuracy stays at the threshold or above until the decision; or else the first
    time after the decision at which it is there, or None. `line` is one of those of `Prospectiveness.as_dict`."""
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


def _working(episode: Episode, decision: int, step: int) -> Tensor | None:
    place = episode.decisions[decision] + step
    return episode.working[place] if 0 <= place < len(episode.working) else None


def _traces(episode: Episode, decision: int, step: int) -> Tensor | None:
    row = episode.window[decision, WINDOW.index(step)]
    return None if bool(row.isnan().any()) else row.flatten().float()


def _line(material: Material, read: Read, steps: range) -> Line:
    line: Line = []
    for step in steps:
        rows: list[list[Tensor]] = [[], []]
        answers: list[list[int]] = [[], []]
        for number, part in enumerate((material.fitted, material.asked)):
            for episode in part:
                for decision, answer in enumerate(episode.answers):
                    row = read(episode, decision, step)
                    if row is not None:
                        rows[number].append(row)
                        answers[number].append(answer)
        decisions = [sum(len(episode.answers) for episode in part) for part in (material.fitted, material.asked)]
        if all(2 * len(each) >= count for each, count in zip(rows, decisions, strict=True)):  # most episodes have begun
            told = LinearProbe.fit(torch.stack(rows[0]), torch.tensor(answers[0]), material.choices).told(
                torch.stack(rows[1])
            )
            line.append((step, Rate.of(int((told == torch.tensor(answers[1])).sum()), len(told))))
    return line
