"""Everything random in training follows from the seed and the number of the step.

Nothing of it has to be saved: a run that goes on at step 700 draws what it would have drawn anyway.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

ORDER, NOISE, WEIGHTS, GROUPS = range(4)
"""Independent sources of randomness."""
GROUPED = 8
"""Batches that are drawn together and sorted by length, at most."""


def seed_weights(seed: int) -> None:
    """Before a policy is built: every process starts from the same weights."""
    torch.manual_seed(_number(seed, WEIGHTS))


def seed_noise(seed: int, step: int, part: int) -> None:
    """Before a part of a step's batch: crops, noise and flow times do not depend on which process computes it."""
    torch.manual_seed(_number(seed, NOISE, step, part))


def episodes_of_step(seed: int, step: int, batch: int, lengths: Sequence[int]) -> list[int]:
    """Numbers of the episodes of a step: pass after pass over the dataset, each in an order of its own.

    Within a few batches, episodes of similar length are put together: less padding is computed. They are never more than a
    pass, or a batch would hold copies.
    """
    grouped = max(1, min(GROUPED, len(lengths) // batch))
    group, place = divmod(step, grouped)
    positions = range(group * grouped * batch, (group + 1) * grouped * batch)
    orders = {
        epoch: np.random.default_rng([seed, ORDER, epoch]).permutation(len(lengths))
        for epoch in range(positions[0] // len(lengths), positions[-1] // len(lengths) + 1)
    }
    drawn = [int(orders[position // len(lengths)][position % len(lengths)]) for position in positions]
    drawn.sort(key=lambda episode: lengths[episode])
    turn = int(np.random.default_rng([seed, GROUPS, group]).permutation(grouped)[place])
    return drawn[turn * batch : (turn + 1) * batch]


def _number(*parts: int) -> int:
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0] >> np.uint64(1))
