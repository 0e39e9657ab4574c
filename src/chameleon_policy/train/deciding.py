"""Which time steps of a demonstration lie just before a decision: their share of the action loss is what needs memory.

A Camo recording says where its decisions are. In other data a decision is where a robot that stood still sets off.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from chameleon_policy.data.episodes import EpisodeArrays

STILL = 0.02
"""At rest: no dimension of the action changes by more than this share of its range in a control step."""
MOVED = 0.2
"""Setting off: within the horizon some dimension changes by more than this share of its range."""


def deciding_steps(episode: EpisodeArrays, horizon: int) -> npt.NDArray[np.bool_]:
    """(T,) True where the robot is at rest and its chunk of `horizon` actions reaches beyond a decision."""
    marks = np.zeros(episode.length, bool)
    if episode.decision_steps:
        for decision in episode.decision_steps:
            marks[max(0, decision - horizon + 1) : decision + 1] = True
        return marks
    actions = episode.actions / np.maximum(np.ptp(episode.actions, axis=0), 1e-6)
    change = np.abs(np.diff(actions, axis=0, prepend=actions[:1])).max(axis=1)
    for step in range(episode.length):
        ahead = actions[step : step + horizon]
        marks[step] = change[step] <= STILL and np.abs(ahead - actions[step]).max() > MOVED
    return marks
