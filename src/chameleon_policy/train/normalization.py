"""Statistics for normalisation, from all frames of a dataset.

The smallest and largest value of proprioception are mapped to -1 and 1; of actions, the mean minus
and plus one standard deviation. A gripper that is either open or closed then does not outweigh
positions, which have long tails, in the loss.

Two kinds of numbers are an exception, since normalising them would magnify tiny variations:

- Directions, three or four neighbouring numbers that always have unit length (columns of a
  rotation, quaternions), keep their natural range. A gripper that always points down would
  otherwise spend most of the loss on fractions of a degree.
- Object slots have a range each, over the frames in which the object is seen, but never a range
  smaller than a twentieth of what that number spans over all slots: millimetres by which a settled
  object is tilted carry no information. They are mapped to [-3, 3]: a slot's token is the sum of
  its numbers and an embedding of size 1, and the position of an object must not be drowned out by
  its identity.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from chameleon_policy.data.episodes import EpisodeArrays
from chameleon_policy.policy import Range, Statistics
from chameleon_policy.train.augmentation import Mirror

UNIT_LENGTH = 1e-3
"""Largest deviation of a direction's length from 1."""
SMALLEST_SHARE = 0.05
"""Smallest range of a number of an object slot, as a share of its span over all slots."""
SLOT_REACH = 3.0
"""Numbers of object slots are mapped to [-SLOT_REACH, SLOT_REACH]."""

Array = npt.NDArray[np.floating]


def statistics_of(episodes: Sequence[EpisodeArrays], mirror: Mirror | None = None) -> Statistics:
    """Return the ranges of state, actions and object slots.

    With a mirror, state and actions of the mirrored episodes count too.
    """
    objects = [episode.objects for episode in episodes if episode.objects is not None]
    return Statistics(
        proprioception=_range_of_vectors(
            _rows([episode.state for episode in episodes], mirror.state if mirror else None)
        ),
        action=_spread_of_vectors(
            _rows([episode.actions for episode in episodes], mirror.action if mirror else None)
        ),
        objects=_range_of_slots(np.concatenate(objects)) if objects else None,
    )


def _rows(episodes: Sequence[Array], signs: tuple[float, ...] | None) -> Array:
    """Return the rows of all episodes, followed by their mirror images if there are signs."""
    rows = np.concatenate(episodes)
    return rows if signs is None else np.concatenate([rows, rows * np.array(signs, rows.dtype)])


def directions(rows: Array) -> list[slice]:
    """Return the columns of rows (N, D) that hold directions."""
    found, first = [], 0
    while first + 3 <= rows.shape[1]:
        for size in (4, 3):
            columns = rows[:, first : first + size]
            if columns.shape[1] == size and bool(
                (np.abs(np.linalg.norm(columns, axis=1) - 1) < UNIT_LENGTH).all()
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
    """Return the range of one standard deviation on both sides of the mean."""
    mean, deviation = rows.mean(axis=0, dtype=float), rows.std(axis=0, dtype=float)
    return _with_natural_directions(rows, mean - deviation, mean + deviation)


def _with_natural_directions(rows: Array, low: Array, high: Array) -> Range:
    for columns in directions(rows):
        low[columns], high[columns] = -1.0, 1.0
    return Range(low=tuple(low.tolist()), high=tuple(high.tolist()))


def _range_of_slots(objects: Array) -> Range:
    """Return one range per slot and number of objects (N, K, F).

    An object that is not seen is a row of zeros. A slot that never shows any has the range of all
    slots together: a policy may see more objects than its demonstrations had.
    """
    seen = (objects != 0).any(axis=-1)
    low = np.where(seen[..., None], objects, np.inf).min(axis=0)
    high = np.where(seen[..., None], objects, -np.inf).max(axis=0)
    everywhere = objects[seen] if seen.any() else np.zeros((1, objects.shape[-1]))
    low, high = (
        np.where(seen.any(axis=0)[:, None], ends, of_all).astype(float)
        for ends, of_all in ((low, everywhere.min(axis=0)), (high, everywhere.max(axis=0)))
    )
    return range_of_slots(low, high, np.ptp(everywhere, axis=0))


def range_of_slots(low: Array, high: Array, span: Array) -> Range:
    """Return one range per slot and number.

    Args:
        low: Smallest values of every slot (K, F).
        high: Largest values of every slot (K, F).
        span: Span of each number over all slots (F).
    """
    middle, half = (low + high) / 2, np.maximum(high - low, SMALLEST_SHARE * span) / 2 / SLOT_REACH
    return Range(
        low=tuple((middle - half).ravel().tolist()), high=tuple((middle + half).ravel().tolist())
    )
