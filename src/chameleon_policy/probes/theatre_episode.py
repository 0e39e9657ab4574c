"""The data that the memory theatre shows of an episode.

Images are uint8, times are control steps, and shares lie between 0 and 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class TokenLayout:
    """The sources of a policy's N event tokens: the patches of each view, then other tokens."""

    views: dict[str, tuple[int, int]]
    """Rows and columns of patches per view, row by row from the upper left; empty without
    cameras.
    """
    others: tuple[str, ...]
    """Names of the tokens after the patches: object slots, `body`, `instruction`.

    One without a name stands for nothing that the policy observes, and is not shown.
    """
    margin: float = 0.0
    """Share of the image's side that the centre crop removes on each side."""

    @property
    def count(self) -> int:
        """Number of tokens N."""
        return sum(rows * columns for rows, columns in self.views.values()) + len(self.others)


@dataclass(frozen=True, eq=False)
class Belief:
    """The prediction of a linear probe on the working state h_t for one question, at every step."""

    question: str
    """Such as `which plate` or `second seasoning`."""
    choices: tuple[str, ...]
    """Such as `left`, `middle`, `right`."""
    truth: int
    """Index of the right answer among the choices."""
    shares: np.ndarray
    """(T, choices), rows sum to one."""


@dataclass(frozen=True, eq=False)
class Counterfactual:
    """An episode continued from a decision with an edited memory."""

    name: str
    """Label of the button: `as it was`, `swap the relevant traces` ..."""
    explanation: str
    """The edit in one sentence."""
    step: int
    """Time step of the decision at which the memory was edited."""
    asks_for: str
    """Name of the candidate that the edited memory asks for."""
    chosen: str | None
    """Name of the candidate that the policy chose in closed loop, or None."""
    shares: np.ndarray
    """(choices,) prediction of the probe on h at the decision."""
    plan: np.ndarray
    """(H, 3) tool positions of the planned chunk, in metres: x away from the robot's base, y to the
    left, z up.
    """
    frames: np.ndarray
    """(K, height, width, 3) images of the first view from the decision on, in closed loop."""


@dataclass(frozen=True, eq=False)
class TheatreEpisode:
    """One episode of T control steps."""

    policy: str
    task: str
    seed: int
    answer: str
    """z in words."""
    outcome: str
    """`success`, `wrong choice`, or another reason of failure."""
    success: bool
    hz: float
    frames: dict[str, np.ndarray]
    """Images (T, height, width, 3) by view."""
    phases: tuple[str, ...]
    """(T): evidence, retention, decision, execution."""
    layout: TokenLayout
    attention: np.ndarray
    """(T, layers, heads, N): attention weights of recall (Eq. 9), which sum to one over N."""
    beliefs: tuple[Belief, ...]
    """One per choice of the episode, in order."""
    positions: np.ndarray
    """(T, 3) positions of the tool, in metres."""
    candidates: dict[str, tuple[float, float]]
    """x and y of each candidate at the decision."""
    counterfactuals: tuple[Counterfactual, ...] = ()

    @property
    def decisions(self) -> tuple[int, ...]:
        """Time steps of the decisions."""
        return tuple(step for step, phase in enumerate(self.phases) if phase == "decision")
