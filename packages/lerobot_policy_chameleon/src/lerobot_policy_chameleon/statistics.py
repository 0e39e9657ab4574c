"""Statistics for normalisation, from the frames of a dataset or from LeRobot's summary of them.

chameleon_policy has rules of its own (see its train/normalization.py): unit directions keep their
natural range, and object slots have ranges over the frames in which they are visible. LeRobot's
min-max or mean-std would magnify a rotation that hardly varies. Therefore LeRobot normalises
nothing, and these statistics are stored in the policy's config.json.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from chameleon_policy.data import EpisodeArrays
from chameleon_policy.policy import Range, Statistics
from chameleon_policy.policy.config import from_json, to_json
from chameleon_policy.policy.features import Features
from chameleon_policy.train.normalization import UNIT_LENGTH, range_of_slots, statistics_of

STATE, OBJECTS, ACTION = "observation.state", "observation.environment_state", "action"
Plain = dict[str, dict[str, list[float]]]
"""Maps quantity and end (low, high) to numbers."""
Array = npt.NDArray[np.floating]


def as_plain(statistics: Statistics) -> Plain:
    """Return statistics for a configuration file."""
    return {
        name: {end: list(map(float, values)) for end, values in limits.items()}
        for name, limits in to_json(statistics).items()
        if limits is not None
    }


def from_plain(plain: Plain) -> Statistics:
    """Return the statistics in a configuration file; an unknown name is an error."""
    return from_json(Statistics, plain, "policy.statistics")


def from_frames(root: Path, features: Features) -> Statistics:
    """Return the statistics that `chameleon train` computes, from all frames on disk."""
    keys = [STATE, ACTION, *([OBJECTS] if features.objects else [])]
    parts: dict[str, list[Array]] = {key: [] for key in keys}
    for path in sorted((root / "data").rglob("*.parquet")):
        table = pq.read_table(path, columns=keys, partitioning=None)
        for key in keys:
            parts[key].append(
                np.stack(table.column(key).to_numpy()).astype(np.float32).reshape(len(table), -1)
            )
    rows = {key: np.concatenate(arrays) for key, arrays in parts.items()}
    slots = features.objects
    objects = None if slots is None else rows[OBJECTS].reshape(-1, slots.count, slots.size)
    # all frames as one episode, since the statistics do not depend on episodes
    return statistics_of(
        [
            EpisodeArrays(
                state=rows[STATE], actions=rows[ACTION], images={}, objects=objects, instruction=""
            )
        ]
    )


def from_summary(stats: Mapping[str, Mapping[str, Any]], features: Features) -> Statistics:
    """Approximate `from_frames` by minimum, maximum, mean and standard deviation of every number.

    Frames in which an object is not visible cannot be recognised, so that zero belongs to the range
    of its slot.
    """
    state, action = (
        _summary(stats, STATE, features.proprioception),
        _summary(stats, ACTION, features.action),
    )
    low, high = action["mean"] - action["std"], action["mean"] + action["std"]
    objects = None
    if features.objects is not None:
        slots = _summary(stats, OBJECTS, features.objects.count * features.objects.size)
        least, most = (
            slots[name].reshape(features.objects.count, features.objects.size)
            for name in ("min", "max")
        )
        objects = range_of_slots(least, most, most.max(axis=0) - least.min(axis=0))
    return Statistics(
        proprioception=_natural(state, state["min"], state["max"]),
        action=_natural(action, low, high),
        objects=objects,
    )


def directions(summary: Mapping[str, Array]) -> list[slice]:
    """Find unit directions: three or four neighbouring numbers with a mean squared norm of 1.

    E |v|^2 is the sum of mean^2 + std^2. A mean of 1 does not prove that every norm is 1; that no
    number leaves [-1, 1] makes it likely enough. Where both three and four numbers fit, the norm
    nearer to 1 counts: a column of a rotation may have a neighbour that is nearly zero.
    """
    square = summary["mean"] ** 2 + summary["std"] ** 2
    inside = (np.abs(summary["min"]) <= 1 + UNIT_LENGTH) & (
        np.abs(summary["max"]) <= 1 + UNIT_LENGTH
    )
    found, first = [], 0
    while first + 3 <= len(square):
        spans = [slice(first, first + size) for size in (3, 4) if first + size <= len(square)]
        errors = {abs(square[span].sum() - 1): span for span in spans if inside[span].all()}
        if errors and min(errors) < 2 * UNIT_LENGTH:
            found.append(errors[min(errors)])
            first = found[-1].stop
        else:
            first += 1
    return found


def _natural(summary: Mapping[str, Array], low: Array, high: Array) -> Range:
    low, high = low.copy(), high.copy()
    for span in directions(summary):
        low[span], high[span] = -1.0, 1.0
    return Range(low=tuple(low.tolist()), high=tuple(high.tolist()))


def _summary(stats: Mapping[str, Mapping[str, Any]], key: str, size: int) -> dict[str, Array]:
    names = ("min", "max", "mean", "std")
    missing = [name for name in names if name not in stats.get(key, {})]
    if missing:
        raise ValueError(
            f"the dataset's statistics (meta/stats.json) have no {', '.join(missing)} of {key}; "
            "compute them again with LeRobot's tools, or train from a dataset whose frames are on "
            "this disk"
        )
    summary = {name: np.asarray(stats[key][name], dtype=float).reshape(-1) for name in names}
    for name, values in summary.items():
        if len(values) != size:
            raise ValueError(
                f"the dataset's statistics: expected {size} numbers of {key} {name}, "
                f"got {len(values)}"
            )
    return summary
