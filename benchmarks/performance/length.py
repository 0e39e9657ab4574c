"""Measure the cost of longer episodes."""

from __future__ import annotations

import copy
import json
import statistics
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from benchmarks.performance.memory import peak_memory, release
from benchmarks.performance.sizes import SEED, Sizes, camera_features
from benchmarks.timing import measure
from chameleon_policy import ChameleonPolicy, fuse, preset


def length(sizes: Sizes, device: torch.device) -> dict[str, Any]:
    """Measure memory layers, forward and backward, by the length of two episodes."""
    features = camera_features(128 if device.type == "cuda" else 64)
    torch.manual_seed(SEED)
    plain = ChameleonPolicy(preset(sizes.preset), features).to(device).train()
    policies = {"ours": fuse(copy.deepcopy(plain)), "plain": plain}
    autocast = torch.autocast("cuda", torch.bfloat16) if device.type == "cuda" else nullcontext()
    rows = {}
    for steps in sizes.lengths:
        tokens = torch.randn(
            2, steps, features.tokens, plain.config.width, device=device, requires_grad=True
        )
        row = {}
        for name, policy in policies.items():

            def run(policy: ChameleonPolicy = policy, tokens: Tensor = tokens) -> None:
                with autocast:
                    working = policy.remember(tokens, None)[0][-1].working
                working.sum().backward()

            run()
            release(device)
            seconds = statistics.median(measure(run, device) for _ in range(3))
            row[name] = {
                "ms": 1e3 * seconds,
                "ms_per_step": 1e3 * seconds / steps,
                "peak_memory_bytes": peak_memory(device),
            }
        rows[str(steps)] = row
    print(json.dumps(rows), flush=True)
    return {"episodes": 2, "tokens": features.tokens, "lengths": rows}
