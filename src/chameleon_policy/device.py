"""Devices to compute on, and errors when a GPU is missing or full."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor

Device = Literal["auto", "cpu", "cuda"]


def find_device(device: Device) -> Literal["cpu", "cuda"]:
    """Return the device to compute on; auto: a GPU if there is one. ValueError if it is missing."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: no GPU is available to torch; use --device cpu")
    return device


@contextmanager
def gpu_memory(remedy: str) -> Iterator[None]:
    """Turn the errors of a full GPU memory into a MemoryError that names the option to lower."""
    try:
        yield
    except RuntimeError as error:
        # The texts of CUDA's allocator, its other errors, and its libraries.
        if not any(words in str(error) for words in ("out of memory", "ALLOC_FAILED")):
            raise
        raise MemoryError(f"the GPU's memory is full; give a smaller {remedy}: {error}") from error


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a small CPU tensor on a device, without waiting for the work a GPU still has to do."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor
