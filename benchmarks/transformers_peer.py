"""Build transformers' Mamba2 layer with our weights: a reference for tests, a peer for speed."""

from __future__ import annotations

from typing import Any

import torch

from chameleon_policy.policy.ssm import SelectiveSSM

OUR_NAME_TO_THEIRS = {
    "in_projection.weight": "in_proj.weight",
    "convolution_weight": "conv1d.weight",
    "convolution_bias": "conv1d.bias",
    "rate_bias": "dt_bias",
    "log_decay": "A_log",
    "skip": "D",
    "norm_weight": "norm.weight",
    "out_projection.weight": "out_proj.weight",
}


def mamba2_mixer(layer: SelectiveSSM) -> Any:
    """Return a `Mamba2Mixer` of the same sizes, chunk and weights, on the same device."""
    from transformers import Mamba2Config
    from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer

    config = layer.config
    mixer = Mamba2Mixer(
        Mamba2Config(
            hidden_size=layer.in_projection.in_features,
            expand=config.expand,
            state_size=config.state,
            head_dim=config.head_dim,
            num_heads=layer.heads,
            n_groups=1,
            conv_kernel=config.convolution,
            chunk_size=config.chunk,
            use_bias=False,
            use_conv_bias=True,
            num_hidden_layers=1,
        ),
        layer_idx=0,
    ).to(layer.skip.device)
    ours, theirs = dict(layer.named_parameters()), dict(mixer.named_parameters())
    assert set(OUR_NAME_TO_THEIRS) == set(ours)
    assert set(OUR_NAME_TO_THEIRS.values()) == set(theirs)
    with torch.no_grad():
        for our_name, their_name in OUR_NAME_TO_THEIRS.items():
            theirs[their_name].copy_(ours[our_name].view_as(theirs[their_name]))
    return mixer
