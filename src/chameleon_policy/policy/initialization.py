"""Weights before training.

What was seen sixty steps ago is about one per cent of a trace at the start, and it must survive a
chain of projections before it can change an action. PyTorch's default for linear layers shrinks
what passes through by 0.58 and adds random biases; both let the part of the signal that never
changes outgrow the part that carries the memory. So every linear layer starts with unit gain and
without bias. LOG.md has the measurement.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from chameleon_policy.policy.ssm import SelectiveSSM


@torch.no_grad()
def initialise(module: nn.Module) -> None:
    """Unit gain and zero bias for every linear layer, then the time constants of every state-space
    layer.
    """
    for part in module.modules():
        if isinstance(part, nn.Linear):
            part.weight.normal_(std=1 / math.sqrt(part.in_features))
            if part.bias is not None:
                part.bias.zero_()
    for part in module.modules():
        if isinstance(part, SelectiveSSM):
            part.initialise_half_lives()
