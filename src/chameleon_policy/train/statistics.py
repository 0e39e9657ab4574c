"""What a policy normalises with, from all frames of a dataset.

Of proprioception the smallest and largest value go to -1 and 1; of actions, the mean less and plus
one standard deviation. A gripper that is either open or closed then does not outweigh positions,
which have long tails, in the loss.

Two kinds of numbers are an exception, since stretching them would blow up what hardly varies:

- Directions: three or four neighbouring numbers that always have unit length (columns of a
  rotation, quaternions) keep their
  natural range. A gripper that points down throughout would otherwise spend most of the loss on
  fractions of a degree.
- Object slots have a range each, over the frames in which the object is seen, but never a range of
  less than a twentieth of
  what that number spans over all slots: the millimetres by which a settled object is tilted are not
  news. Their numbers go to [-3, 3] instead: a slot's token is the sum of them and of an embedding
  of size 1, and where exactly an object is must be heard beside what it is.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from chameleon_policy.data.episodes import EpisodeArrays
from chameleon_policy.policy import Range, Statistics
from chameleon_policy.train.appearance import Mirror

UNIT_LENGTH = 1e-3
"""How far from 1 the length of a direction may be."""
SMALLEST_SHARE = 0.05
SLOT_REACH = 3.0

Array = npt.NDArray[np.floating]


def statistics_of(episodes: Sequence[EpisodeArrays], mirror: Mirror | None = None) -> Statistics:
    """Ranges of state, actions and object slots; of both sides where a mirror stands."""
    objects = [episode.objects for episode in episodes if episode.objects is not None]
    return Statistics(
        proprioception=_range_of_vectors(
            _both([episode.state for episode in episodes], mirror.state if mirror else None)
        ),
        action=_spread_of_vectors(
            _both([episode.actions for episode in episodes], mirror.action if mirror else None)
        ),
        objects=_range_of_slots(np.concatenate(objects)) if objects else None,
    )


def _both(parts: Sequence[Array], signs: tuple[float, ...] | None) -> Array:
    """All rows, and their mirror images."""
    rows = np.concatenate(parts)
    return rows if signs is None else np.concatenate([rows, rows * np.array(signs, rows.dtype)])


def directions(rows: Array) -> list[slice]:
    """Where in rows (N, D) a direction stands."""
    found, first = [], 0
    while first + 3 <= rows.shape[1]:
        for size in (4, 3):
            part = rows[:, first : first + size]
            if part.shape[1] == size and bool(
                (np.abs(np.linalg.norm(part, axis=1) - 1) < UNIT_LENGTH).all()
            ):
                found.append(slice(first, first + size))
                first += size
                break
        else:
            first += 1
    return found


def _range_of_vectors(rows: Array) -> Range:
    return _with_natural_directions(
        rows, rows.min(axis=0).astype(float), rows.max(axis=0).astype(float)
    )


def _spread_of_vectors(rows: Array) -> Range:
    """One standard deviation to both sides of the mean: so much goes to -1 and 1."""
    mean, deviation = rows.mean(axis=0, dtype=float), rows.std(axis=0, dtype=float)
    return _with_natural_directions(rows, mean - deviation, mean + deviation)


def _with_natural_directions(rows: Array, low: Array, high: Array) -> Range:
    for place in directions(rows):
        low[place], high[place] = -1.0, 1.0
    return Range(low=tuple(low.tolist()), high=tuple(high.tolist()))


def _range_of_slots(objects: Array) -> Range:
    """Over (N, K, F), one range per slot and number; a row of zeros is an object that is not
    seen.
    """
    seen = (objects != 0).any(axis=-1)
    low = np.where(seen[..., None], objects, np.inf).min(axis=0)
    high = np.where(seen[..., None], objects, -np.inf).max(axis=0)
    low, high = (
        np.where(seen.any(axis=0)[:, None], ends, 0.0).astype(float) for ends in (low, high)
    )
    everywhere = objects[seen]
    return range_of_slots(
        low, high, np.ptp(everywhere, axis=0) if len(everywhere) else np.zeros(objects.shape[-1])
    )


def range_of_slots(low: Array, high: Array, span: Array) -> Range:
    """From the smallest and largest values of every slot (K, F), and what each number spans over
    all slots (F).
    """
    middle, half = (low + high) / 2, np.maximum(high - low, SMALLEST_SHARE * span) / 2 / SLOT_REACH
    return Range(
        low=tuple((middle - half).ravel().tolist()), high=tuple((middle + half).ravel().tolist())
    )
