"""The policy's modules at the speed of a GPU: fused twins of what stands in `policy/`, put in place
by one call.

    fuse(policy)         training: every module that has a fused twin is replaced by it; same parameters, same state dict
    FastControl(policy)  control: a frozen copy, fused, with recorded graphs (fast_control.py)

    fused.py             the twins: which kernels stand in for which lines of the plain module
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
    frozen.py            what follows from weights alone, computed once

The kernels are Triton's, for half precision (bfloat16 weights, or autocast) on a CUDA device. A
twin that meets anything else (a CPU, float32, sizes that its kernels do not take) computes what its
plain module computes, with the plain module's code.
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
"""Bytes that a block of threads must be able to have: what an RTX 3090, 4090 or 5090 gives it."""
AMPLE_SHARED_MEMORY = 160 * 1024
"""Bytes from which on the largest blocks are used: an A100 or H100 has them."""


def fuse(policy: ModuleT, *, shared_memory: int | None = None) -> ModuleT:
    """Replace the modules of a policy that have a fused twin, in place: the same parameters, the
    same names.

    Block sizes follow the shared memory that a block of threads has on the device; `shared_memory`
    (bytes) makes them as small as another card needs them. Without Triton nothing is replaced.
    """
    if shared_memory is not None and shared_memory < LEAST_SHARED_MEMORY:
        raise ValueError(
            f"shared_memory: expected bytes, at least those of a small card ({LEAST_SHARED_MEMORY}), got {shared_memory}"
        )
    if AVAILABLE:
        from chameleon_policy.kernels.fused import put_twins

        put_twins(policy, shared_memory)
    return policy


def unfuse(policy: ModuleT) -> ModuleT:
    """Put the plain modules back, in place."""
    if AVAILABLE:
        from chameleon_policy.kernels.fused import put_plain

        put_plain(policy)
    return policy


def compute_dtype(tensor: Tensor) -> torch.dtype:
    """Return what a matrix product of this tensor is computed in: autocast's type where it is on,
    else its own.
    """
    kind = tensor.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else tensor.dtype


@cache
def shared_memory_of(device: torch.device) -> int:
    """Return the shared memory in bytes that a block of threads can have on this device; on a CPU,
    that of a small card.
    """
    if device.type != "cuda":
        return LEAST_SHARED_MEMORY
    return int(torch.cuda.get_device_properties(device).shared_memory_per_block_optin)


@cache
def _new_enough(device: torch.device) -> bool:
    """Say whether a device has tensor cores for bfloat16 and shared memory enough: Ampere and
    later.
    """
    if torch.version.hip is not None:
        return False
    return (
        torch.cuda.get_device_capability(device) >= (8, 0)
        and shared_memory_of(device) >= LEAST_SHARED_MEMORY
    )


def enabled(tensor: Tensor) -> bool:
    """Say whether kernels can compute with this tensor: half precision, on a current device that is
    new enough.
    """
    if not (tensor.is_cuda and compute_dtype(tensor) in HALF):
        return False
    return _new_enough(tensor.device) and tensor.device.index == torch.cuda.current_device()


def __getattr__(name: str) -> Any:
    """Load FastControl when it is used: the kernels themselves need no part of the policy, which it
    imports.
    """
    if name == "FastControl":
        return importlib.import_module("chameleon_policy.kernels.fast_control").FastControl
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
