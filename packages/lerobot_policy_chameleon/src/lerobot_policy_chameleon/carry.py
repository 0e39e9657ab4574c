"""Memory that is carried from one batch of windows to the next, where the sampler allows it.

A row whose window begins where a window of the previous batch ended, in the same episode, continues
with that memory and that augmentation; every other row begins with an empty memory. A sampler that
returns the windows of several long episodes in parallel and in order offers such rows; LeRobot's
samplers shuffle, and offer them by chance.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from chameleon_policy.policy import MemoryState, VisuomotorPolicy
from chameleon_policy.policy.observation import Augmentation
from chameleon_policy.policy.visuomotor import Loss

Spans = list[tuple[int, int, int]]
"""Of each row: its episode, its first frame, and the frame after its last one."""


@dataclass(frozen=True, eq=False)
class Carried:
    """The memory and augmentation at the end of a batch."""

    ends: dict[tuple[int, int], int]
    """Maps episode and next frame to a row."""
    state: MemoryState
    augmentation: Augmentation | None


def carry_over(loss: Loss, spans: Spans | None, whole: list[bool]) -> Carried | None:
    """Return what the next batch can continue: rows whose memory is not of padding."""
    if spans is None or loss.state is None:
        return None
    ends = {(episode, end): row for row, (episode, _, end) in enumerate(spans) if whole[row]}
    return Carried(ends, loss.state, loss.augmentation)


def start_from(
    carried: Carried | None, policy: VisuomotorPolicy, spans: Spans | None
) -> tuple[MemoryState | None, Augmentation | None]:
    """Return the memory and augmentation of a batch; None: all memories are empty."""
    if carried is None or spans is None:
        return None, None
    pairs = [
        (row, carried.ends[episode, first])
        for row, (episode, first, _) in enumerate(spans)
        if (episode, first) in carried.ends
    ]
    if not pairs:
        return None, None
    rows, sources = [row for row, _ in pairs], [source for _, source in pairs]
    state = policy.initial_state(len(spans)).put(rows, carried.state[sources])
    if carried.augmentation is None:
        return state, None
    fresh, kept = policy.draw_augmentation(len(spans)), carried.augmentation[sources]
    where = torch.tensor(rows, device=fresh.crop.device)
    return state, Augmentation(
        crop=fresh.crop.index_copy(0, where, kept.crop),
        proprioception_offset=fresh.proprioception_offset.index_copy(
            0, where, kept.proprioception_offset
        ),
    )
