"""Run our state-space layer by mamba-ssm's kernels (2.3, with causal-conv1d), to compare speed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from chameleon_policy.policy.ssm import NORM_EPSILON, SelectiveSSM


class MambaSsmLayer(nn.Module):
    """The default path of mamba-ssm: one function from input projection to output."""

    def __init__(self, ours: SelectiveSSM) -> None:
        super().__init__()
        from mamba_ssm.ops.triton.ssd_combined import mamba_split_conv1d_scan_combined

        self.combined: Any = mamba_split_conv1d_scan_combined
        self.config = ours.config
        for name, parameter in ours.named_parameters():
            self.register_parameter(
                name.replace(".", "_"), nn.Parameter(parameter.detach().clone())
            )

    def forward(self, sequence: Tensor) -> Tensor:
        """Map (S T width) to (S T width), from an empty state."""
        projected = nn.functional.linear(sequence, self.in_projection_weight)
        output: Tensor = self.combined(
            projected,
            self.convolution_weight,
            self.convolution_bias,
            self.rate_bias,
            -torch.exp(self.log_decay),
            self.skip,
            self.config.chunk,
            activation="silu",
            rmsnorm_weight=self.norm_weight,
            rmsnorm_eps=NORM_EPSILON,
            outproj_weight=self.out_projection_weight,
            headdim=self.config.head_dim,
            ngroups=1,
            norm_before_gate=False,
        )
        return output
