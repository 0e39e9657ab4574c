"""Measure the time of a training step by kind of kernel."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.performance.sizes import SEED, Sizes, camera_features
from benchmarks.performance.training import Stepper, random_batch
from benchmarks.timing import synchronize

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


def kinds(sizes: Sizes, device: torch.device) -> dict[str, float]:
    """Return the GPU milliseconds of one training step on one stream, without a recording."""
    features = camera_features(sizes.image)
    batch = random_batch(features, sizes.episodes, sizes.steps, SEED).to(device)
    stepper = Stepper(features, sizes, device, plain=False)
    stepper.graphed = None
    with mock.patch("chameleon_policy.kernels.fused.side_by_side", _in_order):
        for seed in range(3):
            stepper.step(batch, seed)
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            stepper.step(batch, 3)
            synchronize(device)
    found = dict.fromkeys([*KINDS, "rest"], 0.0)
    for event in profiler.key_averages():
        kind = next(
            (kind for kind, pattern in KINDS.items() if re.search(pattern, event.key)), "rest"
        )
        found[kind] += event.self_device_time_total / 1e3
    print(json.dumps(found), flush=True)
    return found


def _in_order(jobs: Sequence[Callable[[], Any]], _: object) -> list[Any]:
    return [job() for job in jobs]
