"""Results that depend on weights alone, computed once for policies with frozen weights."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor, nn

from chameleon_policy.policy.attention import Attention, TransformerBlock

ModuleT = TypeVar("ModuleT", bound=nn.Module)


class FrozenAttention(Attention):
    """Attention that caches the joint weights of queries, keys and values."""

    joined: tuple[Tensor, Tensor] | None = None
    """The cached weight and bias; None: compute them at every call, as the plain module does."""

    def join(self) -> tuple[Tensor, Tensor]:
        """Return the joint weight (3D D) and bias (3D) of queries, keys and values."""
        return super().join() if self.joined is None else self.joined


CACHED = ("joined", "over_cells")
"""Attributes that cache results of frozen weights."""


def adopt(kind: type[ModuleT], plain: nn.Module) -> ModuleT:
    """Make a module of class `kind` that shares the plain one's parameters, buffers and children.

    It drops cached results.
    """
    module = kind.__new__(kind)
    nn.Module.__init__(module)
    module.__dict__.update(
        {name: value for name, value in plain.__dict__.items() if name not in CACHED}
    )
    return module


@torch.no_grad()
def freeze(policy: ModuleT) -> ModuleT:
    """Freeze a policy in eval mode: no gradients, joint projections, rearranged weights."""
    policy.eval().requires_grad_(False)
    for block in [module for module in policy.modules() if isinstance(module, TransformerBlock)]:
        if not isinstance(block.attention, FrozenAttention):
            block.attention = adopt(FrozenAttention, block.attention)
        block.attention.joined = block.attention.join()
    for module in policy.modules():
        if hasattr(module, "rearrange_weights"):
            module.rearrange_weights()
    return policy
