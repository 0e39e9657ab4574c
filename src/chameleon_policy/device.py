"""Where to compute."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Device = Literal["auto", "cpu", "cuda"]


def check_device(device: Device) -> None:
    """ValueError if a GPU is asked for where there is none."""
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: no GPU is available to torch; use --device cpu")


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """A small tensor of the CPU's where it is needed, without waiting for what a GPU is still busy with."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor
