"""Device of the kernels' tests: a CUDA GPU, or the CPU with Triton's interpreter.

Import this file before the kernels.
"""

from __future__ import annotations

import importlib.util
import os

import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"
if importlib.util.find_spec("triton") is None:
    pytest.skip("Triton is not installed", allow_module_level=True)
