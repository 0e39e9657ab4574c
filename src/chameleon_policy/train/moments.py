"""What kind of moment a time step is: the robot moves, only waits, or is about to decide.

The action loss of the deciding steps is the part that needs memory. A Camo recording says where its
decisions are; in other data a decision is where a robot that stood still sets off, which actions
tell only if they are absolute (poses, joint positions): with velocities or deltas these marks, and
with them `decision_loss`, mean little.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from chameleon_policy.data.episodes import EpisodeArrays

MOVING, RESTING, DECIDING = range(3)

STILL = 0.02
"""At rest: no dimension of the action changes by more than this share of its span in a control
step.
"""
MOVED = 0.2
"""Setting off: within the horizon some dimension changes by more than this share of its span."""


def moments(
    episode: EpisodeArrays, horizon: int, span: npt.NDArray[np.floating]
) -> npt.NDArray[np.int8]:
    """(T,) the kind of every time step; `span` (A,) is how far each dimension of the action
    typically goes.
    """
    kinds = np.full(episode.length, MOVING, np.int8)
    if episode.decision_steps:
        kinds[: episode.decision_steps[0]] = RESTING
        for decision in episode.decision_steps:
            kinds[max(0, decision - horizon + 1) : decision + 1] = DECIDING
        return kinds
    actions = episode.actions / np.maximum(span, 1e-6)
    change = np.abs(np.diff(actions, axis=0, prepend=actions[:1])).max(axis=1)
    for step in range(episode.length):
        if change[step] <= STILL:
            sets_off = np.abs(actions[step : step + horizon] - actions[step]).max() > MOVED
            kinds[step] = DECIDING if sets_off else RESTING
    return kinds
