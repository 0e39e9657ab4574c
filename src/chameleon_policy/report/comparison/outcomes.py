"""The rows of a bench as numbers: rates over episodes, averages over tasks, methods in pairs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from chameleon_policy.rates import Rate, average, mcnemar

Row = Mapping[str, Any]
"""The episodes of one policy on one task."""
SUCCESS, WRONG, FAILED = "swf"
"""Letters of a row's `outcomes`, one for each episode: success, wrong choice, failed
manipulation.
"""
NO_CHOICE = "-"
"""In a row's `choices`, a word for each episode, an episode without a choice; the other words are
digits, as in its `answers`.
"""
Episode = tuple[str, int, int]
"""Task, seed of the training run, seed of the evaluation episode."""
RESAMPLES = 10_000
"""Bootstrap samples of an interval."""


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
    """Episodes in which only the reference succeeds."""
    gained: int
    """Episodes in which only the other method succeeds."""

    @property
    def difference(self) -> float:
        """SR of the other method minus SR of the reference."""
        return (self.gained - self.lost) / self.episodes

    @property
    def p(self) -> float:
        """Two-sided p of the exact McNemar test."""
        return mcnemar(self.lost, self.gained)


def words(answers: Iterable[int | Sequence[int] | None]) -> str:
    """Return answers or choices as a row keeps them.

    For example `2 0 -`, or `201 - 110` where they have several parts.
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
    """Return the scores of these episodes with their Wilson intervals."""
    right = outcomes.count(SUCCESS)
    scorable = right + outcomes.count(WRONG)
    return Rates(
        Rate.of(scorable, len(outcomes)), Rate.of(right, scorable), Rate.of(right, len(outcomes))
    )


def average_rates(parts: Iterable[Rates]) -> Rates:
    """Return the mean of each score; see `rates.average`."""
    parts = list(parts)
    return Rates(
        average([part.msr for part in parts]),
        average([part.dsr for part in parts]),
        average([part.sr for part in parts]),
    )


def episodes(rows: Iterable[Row]) -> dict[Episode, bool]:
    """Return whether each episode of these rows was a success."""
    return {
        (row["task"], row["seed"], row["first_seed"] + number): letter == SUCCESS
        for row in rows
        for number, letter in enumerate(row["outcomes"])
    }


def paired(reference: Mapping[Episode, bool], other: Mapping[Episode, bool]) -> Paired | None:
    """Compare two methods on the episodes that both have played; None if there are none."""
    common = reference.keys() & other.keys()
    if not common:
        return None
    lost = sum(reference[episode] and not other[episode] for episode in common)
    gained = sum(other[episode] and not reference[episode] for episode in common)
    return Paired(len(common), lost, gained)


def seed_interval(
    reference: Mapping[Episode, bool], other: Mapping[Episode, bool]
) -> tuple[float, float] | None:
    """Return the 95 % interval of the difference in mean SR that includes the training seed.

    A two-way bootstrap: training seeds and evaluation episodes are drawn independently, since every
    training plays the same episodes; tasks count equally. One seed fewer is drawn than there are,
    which makes the variance over seeds unbiased (Rao and Wu, 1988). None if the methods do not
    share two trainings that have played the same episodes of every task.
    """
    common = reference.keys() & other.keys()
    seeds = sorted({seed for _, seed, _ in common})
    played = {task: sorted({e for t, _, e in common if t == task}) for task, _, _ in common}
    whole = len(common) == len(seeds) * sum(map(len, played.values()))
    if len(seeds) < 2 or not whole:
        return None
    rng = np.random.default_rng(0)
    drawn_seeds = rng.multinomial(
        len(seeds) - 1, np.full(len(seeds), 1 / len(seeds)), size=RESAMPLES
    ) / (len(seeds) - 1)
    difference = np.zeros(RESAMPLES)
    for task, numbers in sorted(played.items()):
        gains = np.array(
            [
                [other[task, seed, n] - float(reference[task, seed, n]) for n in numbers]
                for seed in seeds
            ]
        )
        count = len(numbers)
        drawn = rng.multinomial(count, np.full(count, 1 / count), size=RESAMPLES) / count
        difference += np.einsum("bs,sn,bn->b", drawn_seeds, gains, drawn) / len(played)
    low, high = np.quantile(difference, (0.025, 0.975))
    return float(low), float(high)
