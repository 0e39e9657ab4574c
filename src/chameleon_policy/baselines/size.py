"""Sizes that match: a baseline's own parts get about as many parameters as the parts of Chameleon
that they stand for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import nn

from chameleon_policy.policy import Features, PolicyConfig
from chameleon_policy.policy.action_flow import ActionFlow
from chameleon_policy.policy.attention import TransformerBlock
from chameleon_policy.policy.memory import MemoryLayer


def count(make: Callable[[], nn.Module]) -> int:
    """Parameters of a module, without making their numbers."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in make().parameters())


def memory_size(config: PolicyConfig) -> int:
    """Parameters of Chameleon's memory layers."""
    return config.layers * count(lambda: MemoryLayer(config))


def head_size(config: PolicyConfig, features: Features) -> int:
    """Parameters of Chameleon's action head."""
    return count(lambda: ActionFlow(config, features.action, features.horizon))


def make_block(config: PolicyConfig) -> TransformerBlock:
    """The transformer block that baselines are built from: the same as Chameleon's."""
    return TransformerBlock(config.width, config.heads, config.feedforward_ratio)


def blocks_for(config: PolicyConfig, budget: int) -> int:
    """How many transformer blocks come closest to a budget of parameters; at least one."""
    return max(1, round(budget / count(lambda: make_block(config))))


def closest(sizes: Iterable[int], make: Callable[[int], nn.Module], budget: int) -> int:
    """The size whose module comes closest to a budget of parameters."""
    return min(sizes, key=lambda size: abs(count(lambda: make(size)) - budget))
