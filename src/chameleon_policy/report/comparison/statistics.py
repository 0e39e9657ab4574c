"""Numbers of a comparison: rates over episodes, averages over tasks, and pairs of episodes that two methods played."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chameleon_policy.camo import Rate

Row = Mapping[str, Any]
"""Of a bench: one policy on one task."""
SUCCESS, WRONG, FAILED = "swf"
"""Letters of a row's `outcomes`, one for each episode: success, wrong choice, failed manipulation."""
NO_CHOICE = "-"
"""Stands in a row's `choices`, a word for each episode, where none was made; otherwise digits, as in its `answers`."""
Episode = tuple[str, int, int]
"""Task, seed of the training, seed of the evaluation episode."""


@dataclass(frozen=True)
class Rates:
    """MSR, DSR and SR of one method on one task, or on average."""

    msr: Rate
    dsr: Rate
    sr: Rate


@dataclass(frozen=True)
class Paired:
    """Two methods on the same episodes."""

    episodes: int
    lost: int
    """Only the reference succeeds."""
    gained: int
    """Only the other one does."""

    @property
    def difference(self) -> float:
        """SR of the other method minus SR of the reference."""
        return (self.gained - self.lost) / self.episodes

    @property
    def p(self) -> float:
        """Exact McNemar."""
        return mcnemar(self.lost, self.gained)


def words(answers: Iterable[int | Sequence[int] | None]) -> str:
    """Answers or choices as a row keeps them: `2 0 -`, or `201 - 110` where they have several parts."""
    return " ".join(
        NO_CHOICE if answer is None else str(answer) if isinstance(answer, int) else "".join(map(str, answer))
        for answer in answers
    )


def rates(outcomes: str) -> Rates:
    """Scores of these episodes with their Wilson intervals."""
    right = outcomes.count(SUCCESS)
    scorable = right + outcomes.count(WRONG)
    return Rates(Rate.of(scorable, len(outcomes)), Rate.of(right, scorable), Rate.of(right, len(outcomes)))


def average(parts: Sequence[Rate]) -> Rate:
    """The mean of independent rates; its interval by MOVER.

    With the parts' estimates p and intervals [l, u], the mean of k parts reaches sqrt(sum (p - l)^2) / k below and
    sqrt(sum (u - p)^2) / k above. If one of them is unknown, so is the mean.
    """
    count = sum(part.count for part in parts)
    if any(math.isnan(part.value) for part in parts):
        return Rate(math.nan, 0.0, 1.0, count)
    number = len(parts)
    mean = sum(part.value for part in parts) / number
    below = math.sqrt(sum((part.value - part.low) ** 2 for part in parts)) / number
    above = math.sqrt(sum((part.high - part.value) ** 2 for part in parts)) / number
    return Rate(mean, max(0.0, mean - below), min(1.0, mean + above), count)


def average_rates(parts: Iterable[Rates]) -> Rates:
    """The same for all three."""
    parts = list(parts)
    return Rates(
        average([part.msr for part in parts]), average([part.dsr for part in parts]), average([part.sr for part in parts])
    )


def mcnemar(lost: int, gained: int) -> float:
    """Two-sided exact p: how likely a fair coin splits the episodes that differ at least as unevenly."""
    number = lost + gained
    ways = sum(math.comb(number, few) for few in range(min(lost, gained) + 1))
    share: float = 2 * ways / (1 << number)
    return min(1.0, share)


def episodes(rows: Iterable[Row]) -> dict[Episode, bool]:
    """Whether each episode of these rows was a success."""
    return {
        (row["task"], row["seed"], row["first_seed"] + number): letter == SUCCESS
        for row in rows
        for number, letter in enumerate(row["outcomes"])
    }


def paired(reference: Mapping[Episode, bool], other: Mapping[Episode, bool]) -> Paired | None:
    """What both have played; episodes that only one of them has are left out. None if there is no such episode."""
    common = reference.keys() & other.keys()
    if not common:
        return None
    lost = sum(reference[episode] and not other[episode] for episode in common)
    gained = sum(other[episode] and not reference[episode] for episode in common)
    return Paired(len(common), lost, gained)
