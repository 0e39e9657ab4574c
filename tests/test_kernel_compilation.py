"""Kernels compile for GPUs that are not there, and fit into their shared memory: Triton's interpreter shows neither."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from chameleon_policy import kernels

ROOT = Path(__file__).parent.parent


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_every_kernel_of_a_training_step_compiles(tmp_path: Path) -> None:
    """For an H100 or H200; `python tests/compile_kernels.py 80` does it for an A100."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join([str(ROOT / "tests"), *sys.path])}
    result = subprocess.run(
        [sys.executable, str(ROOT / "tests/compile_kernels.py"), "90"], capture_output=True, text=True, env=environment
    )
    assert result.returncode == 0, result.stderr[-3000:]
    shared = json.loads(result.stdout.splitlines()[-1])
    used = {"_group_norm_backward", "_pool_back", "_space_to_depth", "_stream_norm_backward", "_gelu_backward",
            "_attention_backward", "_one_query_backward", "_scan_gradients_through_states",
            "_column_sums", "_sum_rows"}  # fmt: skip
    assert used <= shared.keys()
    too_much = {name: size for name, size in shared.items() if size > kernels.SHARED_MEMORY}
    assert not too_much, f"more than {kernels.SHARED_MEMORY} bytes of shared memory: {too_much}"
