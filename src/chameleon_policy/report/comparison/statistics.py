"""Numbers of a comparison: rates over episodes, averages over tasks, and pairs of episodes that two
methods played.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chameleon_policy.rates import Rate, average, mcnemar

Row = Mapping[str, Any]
"""Of a bench: one policy on one task."""
SUCCESS, WRONG, FAILED = "swf"
"""Letters of a row's `outcomes`, one for each episode: success, wrong choice, failed
manipulation.
"""
NO_CHOICE = "-"
"""Stands in a row's `choices`, a word for each episode, where none was made; otherwise digits, as
in its `answers`.
"""
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
    """Answers or choices as a row keeps them: `2 0 -`, or `201 - 110` where they have several
    parts.
    """
    return " ".join(
        NO_CHOICE
        if answer is None
        else str(answer)
        if isinstance(answer, int)
        else "".join(map(str, answer))
        for answer in answers
    )


def rates(outcomes: str) -> Rates:
    """Scores of these episodes with their Wilson intervals."""
    right = outcomes.count(SUCCESS)
    scorable = right + outcomes.count(WRONG)
    return Rates(
        Rate.of(scorable, len(outcomes)), Rate.of(right, scorable), Rate.of(right, len(outcomes))
    )


def average_rates(parts: Iterable[Rates]) -> Rates:
    """The same for all three."""
    parts = list(parts)
    return Rates(
        average([part.msr for part in parts]),
        average([part.dsr for part in parts]),
        average([part.sr for part in parts]),
    )


def episodes(rows: Iterable[Row]) -> dict[Episode, bool]:
    """Whether each episode of these rows was a success."""
    return {
        (row["task"], row["seed"], row["first_seed"] + number): letter == SUCCESS
        for row in rows
        for number, letter in enumerate(row["outcomes"])
    }


def paired(reference: Mapping[Episode, bool], other: Mapping[Episode, bool]) -> Paired | None:
    """What both have played; episodes that only one of them has are left out. None if there is no
    such episode.
    """
    common = reference.keys() & other.keys()
    if not common:
        return None
    lost = sum(reference[episode] and not other[episode] for episode in common)
    gained = sum(other[episode] and not reference[episode] for episode in common)
    return Paired(len(common), lost, gained)
