"""Matching sizes: the parts of a baseline get about as many parameters as those of Chameleon."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import nn

from chameleon_policy.policy import Features, PolicyConfig
from chameleon_policy.policy.action_flow import ActionFlow
from chameleon_policy.policy.attention import TransformerBlock
from chameleon_policy.policy.memory import MemoryLayer


def count(make: Callable[[], nn.Module]) -> int:
    """Count a module's parameters on the meta device, without allocating them."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in make().parameters())


def memory_size(config: PolicyConfig) -> int:
    """Return the number of parameters of Chameleon's memory layers."""
    return config.layers * count(lambda: MemoryLayer(config))


def head_size(config: PolicyConfig, features: Features) -> int:
    """Return the number of parameters of Chameleon's action head."""
    return count(lambda: ActionFlow(config, features.action, features.horizon))


def make_block(config: PolicyConfig) -> TransformerBlock:
    """Make the transformer block of Chameleon, from which baselines are built."""
    return TransformerBlock(config.width, config.heads, config.feedforward_ratio)


def blocks_for(config: PolicyConfig, budget: int) -> int:
    """Return the number of transformer blocks closest to a parameter budget; at least one."""
    return max(1, round(budget / count(lambda: make_block(config))))


def closest(sizes: Iterable[int], make: Callable[[int], nn.Module], budget: int) -> int:
    """Return the size whose module comes closest to a parameter budget."""
    return min(sizes, key=lambda size: abs(count(lambda: make(size)) - budget))
