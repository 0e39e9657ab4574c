"""Measure the memory of tensors on a GPU."""

from __future__ import annotations

import torch


def peak_memory(device: torch.device) -> int | None:
    """Return the peak bytes of tensors since the last reset; a CPU does not count them."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None


def release(device: torch.device) -> None:
    """Free cached memory and reset the peak."""
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
