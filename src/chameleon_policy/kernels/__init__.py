"""Fused twins of the policy's modules for GPUs, put in place by one call.

    fuse(policy)         training: replaces modules by their twins; same parameters and state dict
    FastControl(policy)  control: a frozen fused copy with recorded graphs (fast_control.py)

    fused.py             the twins: which kernels replace which lines of the plain modules
    group_norm.py        GroupNorm + residual + ReLU over channels-last images
    stem.py              the encoder's first layers: convolution, GroupNorm + ReLU + max pooling
    layer_norm.py        residual sum + LayerNorm
    gelu.py              bias + GELU
    bias.py              gradient of a bias
    sums.py              sums of the partial results of a kernel's programs
    attention.py         attention over a few dozen tokens
    one_query.py         attention of a single query, without keys and values
    selective_scan.py    the recurrence of a state-space layer
    selective_layer.py   that layer between its projections: convolution, recurrence, gated RMSNorm
    euler.py             the action head's Euler steps for one or a few robots
    streams.py           independent work in parallel streams
    weights.py           conversion of the weights of many layers at once
    frozen.py            results that depend on weights alone, computed once

The kernels are Triton's, for half precision (bfloat16 weights, or autocast) on a CUDA device. For
any other input (a CPU, float32, unsupported sizes) a twin runs the code of its plain module.
"""

from __future__ import annotations

import importlib
import importlib.util
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from chameleon_policy.kernels.fast_control import FastControl as FastControl

ModuleT = TypeVar("ModuleT", bound=nn.Module)

AVAILABLE = importlib.util.find_spec("triton") is not None
HALF = (torch.bfloat16, torch.float16)
LEAST_SHARED_MEMORY = 99 * 1024
"""Bytes per block of threads that the kernels need; an RTX 3090, 4090 or 5090 has them."""
AMPLE_SHARED_MEMORY = 160 * 1024
"""Bytes per block of threads that the largest blocks need; an A100 or H100 has them."""


def fuse(policy: ModuleT, *, shared_memory: int | None = None) -> ModuleT:
    """Replace the modules of a policy that have a fused twin, in place.

    Parameters and their names stay the same. Block sizes follow the device's shared memory per
    block; `shared_memory` (bytes) sets another limit. Without Triton nothing is replaced.
    """
    if shared_memory is not None and shared_memory < LEAST_SHARED_MEMORY:
        raise ValueError(
            "shared_memory: expected bytes, at least those of a small card "
            f"({LEAST_SHARED_MEMORY}), got {shared_memory}"
        )
    if AVAILABLE:
        from chameleon_policy.kernels.fused import put_twins  # imports Triton

        put_twins(policy, shared_memory)
    return policy


def unfuse(policy: ModuleT) -> ModuleT:
    """Put the plain modules back, in place."""
    if AVAILABLE:
        from chameleon_policy.kernels.fused import put_plain  # imports Triton

        put_plain(policy)
    return policy


def compute_dtype(tensor: Tensor) -> torch.dtype:
    """Return the type of matrix products of this tensor: autocast's if it is on, or its own."""
    kind = tensor.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else tensor.dtype


@cache
def shared_memory_of(device: torch.device) -> int:
    """Return the shared memory in bytes per block of this device; on a CPU that of a small card."""
    if device.type != "cuda":
        return LEAST_SHARED_MEMORY
    return int(torch.cuda.get_device_properties(device).shared_memory_per_block_optin)


@cache
def _new_enough(device: torch.device) -> bool:
    """Return whether a device has bfloat16 tensor cores (Ampere) and enough shared memory."""
    if torch.version.hip is not None:
        return False
    return (
        torch.cuda.get_device_capability(device) >= (8, 0)
        and shared_memory_of(device) >= LEAST_SHARED_MEMORY
    )


def tile_of(count: int) -> int:
    """Return the size of a matrix product's tile for `count` rows: a power of two, at least 16."""
    return max(16, 1 << (count - 1).bit_length())


def enabled(tensor: Tensor) -> bool:
    """Return whether kernels can compute with this tensor: half precision on a recent device."""
    if not (tensor.is_cuda and compute_dtype(tensor) in HALF):
        return False
    return _new_enough(tensor.device) and tensor.device.index == torch.cuda.current_device()


def __getattr__(name: str) -> Any:
    """Import FastControl on first use, since it imports the policy, which kernels do not need."""
    if name == "FastControl":
        return importlib.import_module("chameleon_policy.kernels.fast_control").FastControl
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
