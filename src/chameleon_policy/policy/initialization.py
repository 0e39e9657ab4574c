"""Initial weights.

At the start, an event of sixty steps ago makes up about one per cent of a trace, and it must
survive a chain of projections to change an action. PyTorch's default for linear layers shrinks
signals by 0.58 and adds random biases; both let the constant part of the signal outgrow the part
that carries the memory. So every linear layer starts with unit gain and without bias. docs/log has
the measurement.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from chameleon_policy.policy.ssm import SelectiveSSM


@torch.no_grad()
def initialise(module: nn.Module) -> None:
    """Give linear layers unit gain and zero bias, and state-space layers their time constants."""
    for part in module.modules():
        if isinstance(part, nn.Linear):
            part.weight.normal_(std=1 / math.sqrt(part.in_features))
            if part.bias is not None:
                part.bias.zero_()
    for part in module.modules():
        if isinstance(part, SelectiveSSM):
            part.initialise_half_lives()
