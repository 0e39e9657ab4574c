"""Where to compute."""

from __future__ import annotations

from typing import Literal

import torch

Device = Literal["auto", "cpu", "cuda"]


def check_device(device: Device) -> None:
    """ValueError if a GPU is asked for where there is none."""
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: no GPU is available to torch; use --device cpu")
