"""Everything random in training follows from the seed and the number of the step.

Nothing of it has to be saved: a run that goes on at step 700 draws what it would have drawn anyway.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

ORDER, NOISE, WEIGHTS, PACE, APPEARANCE = range(5)
"""Independent sources of randomness."""
GROUPED = 8
"""Batches that are sorted by length together."""


def seed_weights(seed: int) -> None:
    """Before a policy is built: every process starts from the same weights."""
    torch.manual_seed(_number(seed, WEIGHTS))


def seed_noise(seed: int, step: int, part: int) -> None:
    """Before a part of a step's batch: crops, noise and flow times do not depend on which process
    computes it.
    """
    torch.manual_seed(_number(seed, NOISE, step, part))


def pace_of(seed: int, step: int, place: int) -> np.random.Generator:
    """Decides at which pace the episode at a place of a step's batch is shown."""
    return np.random.default_rng([seed, PACE, step, place])


def appearance_of(seed: int, step: int, place: int) -> np.random.Generator:
    """Decides what the episode at a place of a step's batch looks like."""
    return np.random.default_rng([seed, APPEARANCE, step, place])


def equal_frames(lengths: Sequence[float], tasks: Sequence[str]) -> list[int]:
    """Numbers of the episodes of a pass in which every task has about as many frames: those of
    tasks with few frames come several times.
    """
    frames = dict.fromkeys(tasks, 0.0)
    for length, task in zip(lengths, tasks, strict=True):
        frames[task] += length
    most = max(frames.values())
    return [number for number, task in enumerate(tasks) for _ in range(round(most / frames[task]))]


def episodes_of_step(
    seed: int, step: int, batch: int, lengths: Sequence[int], of_a_pass: Sequence[int] | None = None
) -> list[int]:
    """Numbers of the episodes of a step: pass after pass over the dataset, each in an order of its
    own.

    Runs of a few batches are sorted by length, since batches of similar episodes need less padding;
    the batches then come in random order. What does not fill a batch is left out of a pass, other
    episodes each time. A dataset smaller than a batch is repeated within it. `of_a_pass` names the
    episodes of a pass (default: each once).
    """
    of_a_pass = range(len(lengths)) if of_a_pass is None else of_a_pass
    per_pass = max(1, len(of_a_pass) // batch)
    number, place = divmod(step, per_pass)
    rng = np.random.default_rng([seed, ORDER, number])
    drawn: list[int] = []
    while len(drawn) < per_pass * batch:
        drawn += [of_a_pass[place] for place in rng.permutation(len(of_a_pass))]
    first = int(rng.permutation(per_pass)[place]) * batch
    run = first - first % (GROUPED * batch)
    similar = sorted(
        drawn[run : min(run + GROUPED * batch, per_pass * batch)],
        key=lambda episode: lengths[episode],
    )
    return similar[first - run : first - run + batch]


def _number(*parts: int) -> int:
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0] >> np.uint64(1))
