"""Memory from one batch of windows to the next, where the sampler allows it.

A row whose window begins where a window of the batch before it ended, in the same episode, goes on
with that memory and that augmentation; every other row begins with an empty memory. A sampler that
deals out the windows of several long episodes side by side and in order offers such rows;
LeRobot's, which shuffle, do so by chance now and then.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from chameleon_policy.policy import MemoryState, VisuomotorPolicy
from chameleon_policy.policy.observation import Augmentation
from chameleon_policy.policy.visuomotor import Loss

Places = list[tuple[int, int, int]]


@dataclass(frozen=True, eq=False)
class Carried:
    """What a batch leaves behind."""

    ends: dict[tuple[int, int], int]
    """Episode and the frame that comes next -> row."""
    state: MemoryState
    augmentation: Augmentation | None


def left_behind(loss: Loss, places: Places | None, whole: list[bool]) -> Carried | None:
    """What the next batch may go on from: the rows whose memory did not run on over padding."""
    if places is None or loss.state is None:
        return None
    ends = {(episode, end): row for row, (episode, _, end) in enumerate(places) if whole[row]}
    return Carried(ends, loss.state, loss.augmentation)


def start_from(
    carried: Carried | None, policy: VisuomotorPolicy, places: Places | None
) -> tuple[MemoryState | None, Augmentation | None]:
    """The memory and augmentation to begin a batch with; None: all rows begin an empty memory."""
    if carried is None or places is None:
        return None, None
    pairs = [
        (row, carried.ends[episode, first])
        for row, (episode, first, _) in enumerate(places)
        if (episode, first) in carried.ends
    ]
    if not pairs:
        return None, None
    rows, sources = [row for row, _ in pairs], [source for _, source in pairs]
    state = policy.initial_state(len(places)).put(rows, carried.state[sources])
    if carried.augmentation is None:
        return state, None
    fresh, kept = policy.draw_augmentation(len(places)), carried.augmentation[sources]
    where = torch.tensor(rows, device=fresh.crop.device)
    return state, Augmentation(
        crop=fresh.crop.index_copy(0, where, kept.crop),
        proprioception_offset=fresh.proprioception_offset.index_copy(
            0, where, kept.proprioception_offset
        ),
    )
