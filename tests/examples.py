"""Small policies, observations and batches for the tests."""

from __future__ import annotations

import dataclasses

import torch

from benchmarks.inputs import random_observation
from chameleon_policy import (
    ChameleonPolicy,
    EpisodeBatch,
    Features,
    Language,
    ObjectSlots,
    Observation,
    PolicyConfig,
    Statistics,
    View,
    preset,
)

STATE_FEATURES = Features(
    objects=ObjectSlots(count=3, size=4), proprioception=5, action=2, horizon=4
)
IMAGE_FEATURES = Features(
    views=(View(name="third", height=64, width=96), View(name="wrist", height=64, width=64)),
    proprioception=5,
    action=2,
    horizon=4,
    language=Language(width=6, encoder="none"),
)
SMALL_IMAGES = dataclasses.replace(
    IMAGE_FEATURES, views=tuple(View(name=n, height=20, width=24) for n in ("third", "wrist"))
)


def nano(**objective: object) -> PolicyConfig:
    config = preset("nano")
    changed = dataclasses.replace(config.objective, **objective)  # type: ignore[arg-type]
    return dataclasses.replace(config, objective=changed)


def make_policy(
    features: Features = STATE_FEATURES,
    seed: int = 0,
    config: PolicyConfig | None = None,
    statistics: Statistics | None = None,
    dtype: torch.dtype = torch.float32,
) -> ChameleonPolicy:
    torch.manual_seed(seed)
    return ChameleonPolicy(nano() if config is None else config, features, statistics).to(dtype)


def make_observation(
    features: Features, *leading: int, seed: int = 0, dtype: torch.dtype = torch.float32
) -> Observation:
    return random_observation(features, leading, torch.Generator().manual_seed(seed), dtype)


def make_batch(
    features: Features, episodes: int, time: int, seed: int = 0, lengths: list[int] | None = None
) -> EpisodeBatch:
    generator = torch.Generator().manual_seed(seed + 1000)
    valid = torch.arange(time) < torch.tensor(lengths or [time] * episodes)[:, None]
    return EpisodeBatch(
        observation=make_observation(features, episodes, time, seed=seed),
        actions=torch.randn(episodes, time, features.action, generator=generator),
        valid=valid,
    )
