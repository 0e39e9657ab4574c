"""What the memory theatre shows of an episode. Pictures are uint8, times are control steps, shares
lie between 0 and 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class TokenLayout:
    """Where the N event tokens of a policy come from, in their order: patches of each view, then
    tokens without a place.
    """

    views: dict[str, tuple[int, int]]
    """View -> rows and columns of its patches, row by row from the upper left; empty for policies
    without cameras.
    """
    others: tuple[str, ...]
    """Names of the tokens behind the patches: object slots, `body`, `instruction`."""
    margin: float = 0.0
    """Share of a picture's side that is cropped away on each side before it is cut into patches."""

    @property
    def count(self) -> int:
        """N."""
        return sum(rows * columns for rows, columns in self.views.values()) + len(self.others)


@dataclass(frozen=True, eq=False)
class Belief:
    """What a linear probe reads from the working state h_t about one question, at every step."""

    question: str
    """Such as `which plate` or `second seasoning`."""
    choices: tuple[str, ...]
    """Such as `left`, `middle`, `right`."""
    truth: int
    """Place of the right answer among the choices."""
    shares: np.ndarray
    """(T, choices), rows sum to one."""


@dataclass(frozen=True, eq=False)
class Counterfactual:
    """The same episode from a decision on, with an edited memory."""

    name: str
    """What a button says: `as it was`, `swap the relevant traces` ..."""
    explanation: str
    """What was done to the memory, in one sentence."""
    step: int
    """The decision at which the memory was edited."""
    asks_for: str
    """The choice that the edited memory stands for, among the candidates' names."""
    chosen: str | None
    """What the policy then took in closed loop; None if it took nothing."""
    shares: np.ndarray
    """(choices,) what is read from h at the decision about the choice that is due there."""
    plan: np.ndarray
    """(H, 3) tool positions of the chunk that follows, in metres: x away from the robot's base, y
    to the left, z up.
    """
    frames: np.ndarray
    """(K, height, width, 3) the first view from the decision on, in closed loop."""


@dataclass(frozen=True, eq=False)
class TheatreEpisode:
    """One episode of T control steps."""

    policy: str
    task: str
    seed: int
    answer: str
    """z in words."""
    outcome: str
    """`success`, `wrong choice`, or what went wrong."""
    success: bool
    hz: float
    frames: dict[str, np.ndarray]
    """View -> (T, height, width, 3)."""
    phases: tuple[str, ...]
    """(T): evidence, retention, decision, execution."""
    layout: TokenLayout
    attention: np.ndarray
    """(T, layers, heads, N): what recall attends to (Eq. 9); sums to one over N."""
    beliefs: tuple[Belief, ...]
    """One for each choice of the episode, in their order."""
    positions: np.ndarray
    """(T, 3) where the tool was, in metres."""
    candidates: dict[str, tuple[float, float]]
    """What can be chosen -> its x and y at the decision."""
    counterfactuals: tuple[Counterfactual, ...] = ()

    @property
    def decisions(self) -> tuple[int, ...]:
        """Steps at which a decision was due."""
        return tuple(step for step, phase in enumerate(self.phases) if phase == "decision")
