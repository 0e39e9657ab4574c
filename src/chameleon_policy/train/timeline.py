"""The time steps of an episode in the order in which training shows them: as they were, or at
another pace.

Until the first decision a robot of Camo waits, and what it sees passes at any pace: leaving out
some frames and repeating others makes a new episode with the same answer. Observations and actions
move together, and nothing changes from the decision on. Few demonstrations are otherwise learned by
heart, each with its answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from chameleon_policy.train.appearance import AS_IT_WAS, Appearance

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Timeline:
    """One episode as it is shown."""

    episode: int
    rows: Rows
    """(T,) which time step of the episode is shown at each moment."""
    kinds: Rows
    """(T,) the time step that is of the same kind (resting, deciding, moving) as this moment."""
    appearance: Appearance = AS_IT_WAS
    """What all of its frames look like."""

    def __len__(self) -> int:
        return len(self.rows)


def as_it_was(episode: int, length: int) -> Timeline:
    """All time steps in their order."""
    rows = np.arange(length)
    return Timeline(episode, rows, rows)


def at_another_pace(
    episode: int,
    length: int,
    decisions: Sequence[int],
    rng: np.random.Generator,
    uneven: float,
    longer: int,
) -> Timeline:
    """Each time step before the first decision is left out with the probability `uneven` and shown
    twice with the same one; the last of them, in which the hands have gone, is shown up to `longer`
    times more.
    """
    if not decisions or decisions[0] == 0:
        return as_it_was(episode, length)
    decision = decisions[0]
    times = rng.choice(3, size=decision, p=[uneven, 1 - 2 * uneven, uneven])
    times[[0, -1]] = 1  # an episode has a beginning, and something stands before its decision
    times[-1] += rng.integers(longer + 1)
    before = np.repeat(np.arange(decision), times)
    after = np.arange(decision, length)
    kinds = np.maximum(np.arange(len(before)) + decision - len(before), 0)
    return Timeline(episode, np.concatenate([before, after]), np.concatenate([kinds, after]))
