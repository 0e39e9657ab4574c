"""GPU kernels of the parts that plain PyTorch leaves slow, each beside the plain code that says what it computes.

    group_norm.py        GroupNorm + residual + ReLU over channels-last pictures
    stem.py              the encoder's first layers: convolution, GroupNorm + ReLU + max pooling
    layer_norm.py        residual sum + LayerNorm
    gelu.py              bias + GELU
    bias.py              gradient of a bias
    sums.py              sums of what a kernel's programs leave behind
    attention.py         attention over a few dozen tokens
    one_query.py         attention of a single query, without keys and values
    selective_scan.py    the recurrence of a state-space layer
    selective_layer.py   that layer between its two projections: convolution, recurrence, gated RMSNorm
    euler.py             the action head's Euler steps for one or a few robots
    streams.py           independent work at the same time
    weights.py           weights of many layers, converted at once

All but the last two are Triton kernels. They are for half precision (bfloat16 weights, or autocast) on a CUDA device. Everywhere else, and inside
`plain_pytorch()` or with CHAMELEON_KERNELS=0 in the environment, the plain code runs: same function, no Triton needed.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor

AVAILABLE = importlib.util.find_spec("triton") is not None
HALF = (torch.bfloat16, torch.float16)
SHARED_MEMORY = 160 * 1024
"""Bytes that a block of threads must be able to have."""

_switched_on = os.environ.get("CHAMELEON_KERNELS", "1") != "0"


@contextmanager
def plain_pytorch() -> Iterator[None]:
    """Inside this block no kernel of ours runs: the reference that they are tested and measured against."""
    global _switched_on
    before, _switched_on = _switched_on, False
    try:
        yield
    finally:
        _switched_on = before


def compute_dtype(tensor: Tensor) -> torch.dtype:
    """What a matrix product of this tensor is computed in: autocast's type where it is on, else the tensor's own."""
    kind = tensor.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else tensor.dtype


@cache
def _new_enough(device: torch.device) -> bool:
    """Tensor cores for bfloat16, and shared memory enough for the largest kernel: A100 and later, without the cards for games."""
    if torch.version.hip is not None:
        return False
    properties = torch.cuda.get_device_properties(device)
    return (properties.major, properties.minor) >= (8, 0) and properties.shared_memory_per_block_optin >= SHARED_MEMORY


def enabled(tensor: Tensor) -> bool:
    """Whether the kernels take part in what is computed from this tensor.

    They start on the current device, so a tensor on another one takes the plain code.
    """
    if not (AVAILABLE and _switched_on and tensor.is_cuda and compute_dtype(tensor) in HALF):
        return False
    return _new_enough(tensor.device) and tensor.device.index == torch.cuda.current_device()
