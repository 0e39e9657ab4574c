"""Activation checkpointing: less memory, more computation, for long episodes."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


def run_layer(layer: nn.Module, *arguments: Any, forget: bool, **options: Any) -> Any:
    """Call a layer; with `forget`, the backward pass recomputes its activations."""
    if not forget or not torch.is_grad_enabled():
        return layer(*arguments, **options)
    # Nothing inside a layer is random.
    return checkpoint(layer, *arguments, use_reentrant=False, preserve_rng_state=False, **options)
