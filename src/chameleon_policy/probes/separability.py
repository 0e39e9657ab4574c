"""Separability (Appendix F.1): is the answer in the current observation, and is it in the memory?

At a decision the scene looks the same for every answer. A linear probe reads z from the event
tokens Z^0 (`current`), which should be at chance, and from the working state h (`memory`). A probe
fitted to shuffled answers (`shuffled`) is a control and must be at chance. Episodes that probes are
fitted to and evaluated on are disjoint.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from chameleon_policy.probes.representations import Episode, Material, probe_accuracy
from chameleon_policy.rates import Rate
from chameleon_policy.train.held_out import LinearProbe

BEFORE, AFTER = 60, 12
"""First and last time step relative to the first decision at which probes are fitted."""
STRIDE = 3
PLACES = ("first", "second", "third", "fourth", "fifth", "sixth")
"""Elements of z."""
Reader = Callable[[Episode], Tensor]


@dataclass(frozen=True)
class Separability:
    """Accuracies of probes of z at the decisions of held-out episodes."""

    chance: float
    current: Rate
    memory: Rate
    shuffled: Rate
    place_by_place: Rate | None
    """Where z has several elements: one probe per element at the first decision, all of them
    right.
    """
    over_time: dict[str, list[tuple[int, Rate]]]
    """For each element of z, times relative to the first decision and accuracies on h."""

    def as_dict(self) -> dict[str, Any]:
        """Return a dictionary for JSON."""
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
    """Fit the probes to some demonstrations and evaluate them on the others."""
    z = [_labels(material.answer_index, part) for part in (material.fitted, material.asked)]

    def rate(read: Reader, fitted_to: Tensor) -> Rate:
        known, asked = (
            torch.cat([read(episode) for episode in part])
            for part in (material.fitted, material.asked)
        )
        return _rate(LinearProbe.fit(known, fitted_to, material.answers).predict(asked) == z[1])

    # Episodes are shuffled, not decisions: all decisions of an episode share one answer.
    order = torch.randperm(len(material.fitted), generator=generator).tolist()
    shuffled = _labels(material.answer_index, [material.fitted[index] for index in order])
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


def _labels(answer_index: Callable[[Sequence[int]], int], episodes: Sequence[Episode]) -> Tensor:
    """Return the index of z for every decision."""
    return torch.tensor(
        [answer_index(episode.answers) for episode in episodes for _ in episode.decisions]
    )


def _rate(right: Tensor) -> Rate:
    return Rate.of(int(right.sum()), len(right))


def _place_by_place(material: Material) -> Rate:
    rows = [
        torch.stack([episode.working[episode.decisions[0]] for episode in part])
        for part in (material.fitted, material.asked)
    ]
    right = torch.ones(len(material.asked), dtype=torch.bool)
    for index in range(len(material.asked[0].answers)):
        known, asked = (
            torch.tensor([episode.answers[index] for episode in part])
            for part in (material.fitted, material.asked)
        )
        right &= LinearProbe.fit(rows[0], known, material.choices).predict(rows[1]) == asked
    return _rate(right)


def _over_time(material: Material) -> dict[str, list[tuple[int, Rate]]]:
    """Fit one probe per time and element of z."""
    count = len(material.asked[0].answers)
    names = PLACES[:count] if count > 1 else ("answer",)
    found: dict[str, list[tuple[int, Rate]]] = {name: [] for name in names}
    for index, curve in enumerate(found.values()):
        for step in range(-BEFORE, AFTER + 1, STRIDE):
            rate = probe_accuracy(material, partial(_at, step=step, index=index))
            if rate is not None:
                curve.append((step, rate))
    return found


def _at(episode: Episode, *, step: int, index: int) -> list[tuple[Tensor | None, int]]:
    return [(episode.working_at(episode.decisions[0] + step), episode.answers[index])]
