"""Separability (Appendix F.1): can the answer be read from what is seen now, and from what is
remembered?

At a decision the scene looks the same for every answer. A linear probe reads z from the event
tokens Z^0 (`current`), which should be a guess, and from the working state h (`memory`). Fitted and
asked episodes are disjoint; a probe fitted to answers that were dealt out at random (`shuffled`)
must be at chance, or the figures mean nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from chameleon_policy.probes.representations import Episode, Material, readable_share
from chameleon_policy.rates import Rate
from chameleon_policy.train.held_out import LinearProbe

BEFORE, AFTER = 60, 12
"""Time steps before and after the first decision through which the probe is followed."""
STRIDE = 3
Read = Callable[[Episode], Tensor]


@dataclass(frozen=True)
class Separability:
    """How often z is read rightly at the decisions of episodes that the probe was not fitted to."""

    chance: float
    current: Rate
    memory: Rate
    shuffled: Rate
    place_by_place: Rate | None
    """Where z has several places: all of them right, each by a probe of its own, at the first
    decision.
    """
    over_time: dict[str, list[tuple[int, Rate]]]
    """What is asked for -> time relative to the first decision, and how often it is read from h
    then.
    """

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "chance": self.chance,
            "current": self.current.as_dict(),
            "memory": self.memory.as_dict(),
            "shuffled": self.shuffled.as_dict(),
            "place_by_place": None
            if self.place_by_place is None
            else self.place_by_place.as_dict(),
            "over_time": {
                name: [{"step": step, **rate.as_dict()} for step, rate in line]
                for name, line in self.over_time.items()
            },
        }


def separability(material: Material, generator: torch.Generator) -> Separability:
    """Fit the probes to some demonstrations and ask them about the others."""
    z = [_decided(material.numbered, part) for part in (material.fitted, material.asked)]
    classes = round(1 / material.chance)

    def rate(read: Read, fitted_to: Tensor) -> Rate:
        known, asked = (
            torch.cat([read(episode) for episode in part])
            for part in (material.fitted, material.asked)
        )
        return _rate(LinearProbe.fit(known, fitted_to, classes).predict(asked) == z[1])

    # Dealt out among episodes, not among decisions: those of an episode have the same answer,
    # shuffled or not.
    dealt = torch.randperm(len(material.fitted), generator=generator).tolist()
    shuffled = _decided(material.numbered, [material.fitted[place] for place in dealt])
    return Separability(
        chance=material.chance,
        current=rate(_current, z[0]),
        memory=rate(_memory, z[0]),
        shuffled=rate(_memory, shuffled),
        place_by_place=_place_by_place(material) if len(material.asked[0].answers) > 1 else None,
        over_time=_over_time(material),
    )


def _current(episode: Episode) -> Tensor:
    return episode.tokens.flatten(1)


def _memory(episode: Episode) -> Tensor:
    return episode.working[list(episode.decisions)]


def _decided(numbered: Callable[[Sequence[int]], int], episodes: Sequence[Episode]) -> Tensor:
    """z of every decision."""
    return torch.tensor(
        [numbered(episode.answers) for episode in episodes for _ in episode.decisions]
    )


def _rate(right: Tensor) -> Rate:
    return Rate.of(int(right.sum()), len(right))


def _place_by_place(material: Material) -> Rate:
    rows = [
        torch.stack([each.working[each.decisions[0]] for each in part])
        for part in (material.fitted, material.asked)
    ]
    right = torch.ones(len(material.asked), dtype=torch.bool)
    for place in range(len(material.asked[0].answers)):
        known, asked = (
            torch.tensor([each.answers[place] for each in part])
            for part in (material.fitted, material.asked)
        )
        right &= LinearProbe.fit(rows[0], known, material.choices).predict(rows[1]) == asked
    return _rate(right)


def _over_time(material: Material) -> dict[str, list[tuple[int, Rate]]]:
    """At each time a probe of its own, for every place of z."""
    names = ("first", "second", "third") if len(material.asked[0].answers) > 1 else ("answer",)
    found: dict[str, list[tuple[int, Rate]]] = {name: [] for name in names}
    for place, line in enumerate(found.values()):
        for step in range(-BEFORE, AFTER + 1, STRIDE):
            rate = readable_share(material, partial(_at, step=step, place=place))
            if rate is not None:
                line.append((step, rate))
    return found


def _at(episode: Episode, *, step: int, place: int) -> list[tuple[Tensor | None, int]]:
    return [(episode.working_at(episode.decisions[0] + step), episode.answers[place])]
