"""The three sizes of the policy. Image sizes, views, action and horizon come with the data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from chameleon_policy.policy.config import PolicyConfig, SSMConfig
from chameleon_policy.policy.features import Features, Language, View

PresetName = Literal["paper", "small", "nano"]

# Camo episodes last 50 to 150 control steps and its delay study 1,000: the longest trace outlives
# all of them.
SLOW_HALF_LIFE = (4.0, 2048.0)
FAST_HALF_LIFE = (1.0, 16.0)
FAST_LIMIT = 16.0


def paper() -> PolicyConfig:
    """Return the policy of the paper: 66.7M trainable parameters."""
    return PolicyConfig(
        preset="paper",
        width=512,
        slow=SSMConfig(expand=1, state=128, half_life=SLOW_HALF_LIFE),
        fast=SSMConfig(expand=2, state=32, half_life=FAST_HALF_LIFE, half_life_limit=FAST_LIMIT),
    )


def small() -> PolicyConfig:
    """Return a policy under 8M parameters, small enough to ship with a repository."""
    return PolicyConfig(
        preset="small",
        width=192,
        heads=6,
        encoder_channels=(32, 64, 128, 192),
        encoder_blocks=(1, 1, 1, 1),
        slow=SSMConfig(expand=1, state=64, head_dim=24, chunk=32, half_life=SLOW_HALF_LIFE),
        fast=SSMConfig(
            expand=2,
            state=32,
            head_dim=48,
            chunk=32,
            half_life=FAST_HALF_LIFE,
            half_life_limit=FAST_LIMIT,
        ),
        head_layers=4,
    )


def nano() -> PolicyConfig:
    """Return a policy of about 0.5M parameters, for tests and experiments on a CPU."""
    return PolicyConfig(
        preset="nano",
        width=64,
        heads=4,
        encoder_channels=(8, 16, 32, 32),
        encoder_blocks=(1, 1, 1, 1),
        slow=SSMConfig(expand=1, state=32, head_dim=8, chunk=16, half_life=SLOW_HALF_LIFE),
        fast=SSMConfig(
            expand=2,
            state=16,
            head_dim=16,
            chunk=16,
            half_life=FAST_HALF_LIFE,
            half_life_limit=FAST_LIMIT,
        ),
        policy_tokens=4,
        head_layers=2,
    )


PRESETS: dict[str, Callable[[], PolicyConfig]] = {"paper": paper, "small": small, "nano": nano}


def preset(name: str) -> PolicyConfig:
    """Return the preset of this name."""
    if name not in PRESETS:
        raise ValueError(f"there is no preset {name!r}; choose one of {', '.join(PRESETS)}")
    return PRESETS[name]()


def budget_features() -> Features:
    """Return the features of the paper's parameter budget: Camo's cameras, actions, language."""
    return Features(
        views=(
            View(name="third", height=224, width=224),
            View(name="wrist", height=224, width=224),
        ),
        proprioception=10,
        action=10,
        horizon=16,
        language=Language(width=768, encoder="distilbert-base-uncased"),
    )
