"""Everything random in training follows from the seed and the number of the step.

Nothing of it has to be saved: a run that goes on at step 700 draws what it would have drawn anyway.
"""

from __future__ import annotations

import numpy as np
import torch

ORDER, NOISE, WEIGHTS = range(3)
"""Independent sources of randomness."""


def seed_weights(seed: int) -> None:
    """Before a policy is built: every process starts from the same weights."""
    torch.manual_seed(_number(seed, WEIGHTS))


def seed_noise(seed: int, step: int, part: int) -> None:
    """Before a part of a step's batch: crops, noise and flow times do not depend on which process computes it."""
    torch.manual_seed(_number(seed, NOISE, step, part))


def episodes_of_step(seed: int, step: int, batch: int, episodes: int) -> list[int]:
    """Numbers of the episodes of a step: pass after pass over the dataset, each in an order of its own."""
    positions = range(step * batch, (step + 1) * batch)
    orders = {
        epoch: np.random.default_rng([seed, ORDER, epoch]).permutation(episodes)
        for epoch in range(positions[0] // episodes, positions[-1] // episodes + 1)
    }
    return [int(orders[position // episodes][position % episodes]) for position in positions]


def _number(*parts: int) -> int:
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0] >> np.uint64(1))
