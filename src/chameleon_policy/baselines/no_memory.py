"""The memoryless twin: Chameleon with the same parameters and the same loss that forgets everything after each step."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from chameleon_policy.policy import ChameleonPolicy
from chameleon_policy.policy.ssm import SelectiveSSM, SSMState


class ForgetfulSSM(SelectiveSSM):
    """The selective SSM when every time step meets an empty state: y = Delta (C . B) x + D x, and nothing is kept."""

    def forward(
        self, sequence: Tensor, state: SSMState | None, *, keep_state: bool = True
    ) -> tuple[Tensor, SSMState | None]:
        """Sequence (... T width) to outputs of the same shape; the state comes back as it was, empty if there is none."""
        state = state or self.initial_state(*sequence.shape[:-2])
        gate, mixed, rates = self.in_projection(sequence).split([self.inner, self.channels, self.heads], dim=-1)
        convolved = mixed * self.convolution_weight[:, -1] + self.convolution_bias  # the steps before are zeros
        values, write, read = F.silu(convolved).split([self.inner, self.config.state, self.config.state], dim=-1)
        rates = F.softplus(rates.to(torch.promote_types(rates.dtype, torch.float32)) + self.rate_bias)
        strength = rates * (read * write).sum(-1, keepdim=True)
        values = values.unflatten(-1, (self.heads, self.config.head_dim))
        return self._outputs((strength[..., None] + self.skip[:, None]) * values, gate), state


class NoMemoryPolicy(ChameleonPolicy):
    """Every time step meets an empty memory: what the policy does follows from the current observation alone."""

    method = "no-memory"

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        for module in self.memory.modules():
            if isinstance(module, SelectiveSSM):
                module.__class__ = ForgetfulSSM  # the same parameters, another forward pass
