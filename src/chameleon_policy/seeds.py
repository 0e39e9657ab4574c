"""Seeds: one number makes a whole episode; training and evaluation never share one."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

TRAINING_SEEDS = range(0, 1_000_000_000)
EVALUATION_SEEDS = range(1_000_000_000, 2_000_000_000)
SEEDS_PER_RECORDING = 100_000
LARGEST_RECORDING_SEED = len(TRAINING_SEEDS) // SEEDS_PER_RECORDING - 1

STREAMS = (
    "answer",
    "layout",
    "script",
    "nuisance",
    "expert",
    "noise",
    "balance",
    "cups",
    "length",
    "questions",
)
"""Independent sources of randomness in an episode. Only `answer` decides z: everything else is the
same for every z of a seed. Those after `balance` are dials that decide which answers there are.
"""


def stream(seed: int, name: str, *numbers: int) -> np.random.Generator:
    """Return the generator of one stream in the episode (or recording) of this seed.

    `numbers` distinguish several of a kind.
    """
    return np.random.default_rng(np.random.SeedSequence([seed, STREAMS.index(name), *numbers]))


def recording_seed(recording: int, episode: int, attempt: int, episodes: int) -> int:
    """Return the training seed of a demonstration; every attempt has another one."""
    if not 0 <= recording <= LARGEST_RECORDING_SEED:
        raise ValueError(
            f"the seed of a recording must be between 0 and {LARGEST_RECORDING_SEED}, "
            f"got {recording}"
        )
    offset = attempt * episodes + episode
    if offset >= SEEDS_PER_RECORDING:
        raise ValueError(
            f"a recording has {SEEDS_PER_RECORDING} seeds; {episodes} episodes with "
            f"{attempt + 1} attempts need more. Record fewer episodes, or several recordings with "
            "different --seed"
        )
    return TRAINING_SEEDS.start + recording * SEEDS_PER_RECORDING + offset


def evaluation_seed(index: int) -> int:
    """Return the seed of the evaluation episode with this index."""
    if not 0 <= index < len(EVALUATION_SEEDS):
        raise ValueError(
            f"evaluation episodes are numbered from 0 to {len(EVALUATION_SEEDS) - 1}, got {index}"
        )
    return EVALUATION_SEEDS[index]


def refuse_training_seeds(seeds: Iterable[int]) -> None:
    """Raise a ValueError for a seed that demonstrations may have been recorded from."""
    wrong = [seed for seed in seeds if seed not in EVALUATION_SEEDS]
    if wrong:
        raise ValueError(
            f"these are not evaluation seeds: {wrong[:5]}{' ...' if len(wrong) > 5 else ''}. "
            f"Evaluate on seeds from {EVALUATION_SEEDS.start} on "
            "(evaluation_seed(0), evaluation_seed(1), ...)"
        )
