"""Where a training step's time goes, by kind of kernel."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

from torch.profiler import ProfilerActivity, profile

KINDS = {
    "convolutions": "cudnn|fprop|dgrad|wgrad",
    "matrix products": "nvjet|gemm|splitK",
    "GroupNorm": "_group_norm",
    "cells and pooling of the stem": "_pool|_cell_sums|_space_to_depth",
    "GELU": "_gelu",
    "attention": "_attention|_one_query",
    "LayerNorm": "_stream_norm",
    "state-space layers": "_scan|_convolution_|_gate",
}
"""What the names of kernels look like, the library's and ours; all others are the rest."""


def by_kind(step: Callable[[], object]) -> dict[str, float]:
    """Milliseconds on the GPU of one step on one stream, without a recording."""
    with mock.patch("chameleon_policy.policy.event_tokens.side_by_side", _in_order):
        step()
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            step()
    found = dict.fromkeys([*KINDS, "rest"], 0.0)
    for event in profiler.key_averages():
        kind = next((kind for kind, pattern in KINDS.items() if re.search(pattern, event.key)), "rest")
        found[kind] += event.self_device_time_total / 1e3
    return found


def _in_order(jobs: Sequence[Callable[[], Any]], _: object) -> list[Any]:
    return [job() for job in jobs]
