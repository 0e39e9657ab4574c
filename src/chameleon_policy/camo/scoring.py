"""Scores of an episode from its events, and rates with intervals (Eq. 19 of the paper).

M: the manipulation can be scored, right or wrong. D: its choice agrees with the history. A task's
`judge` reads both from the events. MSR = P(M), DSR = P(D | M), SR = P(M and D).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from chameleon_policy.camo.events import Event, happened
from chameleon_policy.rates import Rate
from chameleon_policy.suite import Answer

if TYPE_CHECKING:
    from chameleon_policy.camo.tasks.task import Task

WRONG_CHOICE = "wrong choice"
SUCCESS = "success"


@dataclass(frozen=True)
class Verdict:
    """A task's reading of the events: the choice, or why the manipulation does not count."""

    choice: Answer | None
    reason: str = ""


@dataclass(frozen=True)
class Score:
    """Score of one episode."""

    manipulation: bool
    """M."""
    decision: bool
    """D; False where M is, since no choice was made."""
    choice: Answer | None
    reason: str
    """`success`, `wrong choice`, or the mishap of the manipulation."""

    @property
    def success(self) -> bool:
        """M and D."""
        return self.manipulation and self.decision


def score(task: Task, events: Sequence[Event], z: Answer) -> Score:
    """Return the score of an episode with the answer z, from its events alone."""
    if happened(events, "diverged"):
        return Score(False, False, None, "the simulation diverged")
    verdict = task.judge(events)
    if verdict.choice is None:
        return Score(False, False, None, verdict.reason)
    correct = verdict.choice == z
    return Score(True, correct, verdict.choice, SUCCESS if correct else WRONG_CHOICE)


@dataclass(frozen=True)
class Summary:
    """Rates over many episodes of one task."""

    msr: Rate
    dsr: Rate
    sr: Rate
    chance: float
    reasons: dict[str, int]

    @property
    def rates(self) -> dict[str, Rate]:
        """MSR, DSR and SR by name."""
        return {"msr": self.msr, "dsr": self.dsr, "sr": self.sr}

    @property
    def adjusted_dsr(self) -> float:
        """(DSR - p) / (1 - p): 0 at chance, 1 when always right."""
        return (self.dsr.value - self.chance) / (1 - self.chance)

    def as_dict(self) -> dict[str, Any]:
        """Return the summary in JSON's types."""
        adjusted = self.adjusted_dsr
        return {
            **{name: rate.as_dict() for name, rate in self.rates.items()},
            "chance": self.chance,
            "adjusted_dsr": None if math.isnan(adjusted) else adjusted,
            "reasons": self.reasons,
        }


def summarise(scores: Iterable[Score], chance: float) -> Summary:
    """Return MSR, DSR and SR, and how often each reason occurred, most frequent first."""
    scores = list(scores)
    scorable = [each for each in scores if each.manipulation]
    right = sum(each.decision for each in scorable)
    return Summary(
        msr=Rate.of(len(scorable), len(scores)),
        dsr=Rate.of(right, len(scorable)),
        sr=Rate.of(right, len(scores)),
        chance=chance,
        reasons=dict(Counter(each.reason for each in scores).most_common()),
    )
