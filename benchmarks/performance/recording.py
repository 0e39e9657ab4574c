"""Measure the effect of recording a training step as a CUDA graph, for every size of the policy."""

from __future__ import annotations

import dataclasses
import json
import statistics
from typing import Any

import torch

from benchmarks.performance.memory import release
from benchmarks.performance.sizes import SEED, Sizes, camera_features
from benchmarks.performance.training import Stepper, random_batch
from benchmarks.timing import measure


def recording(sizes: Sizes, device: torch.device) -> dict[str, Any]:
    """Time a step, recorded and not, with two views and the batch of each size's training."""
    rows = {}
    for name, image, episodes in (
        ("paper", sizes.image, sizes.episodes),
        ("small", 96, 32),
        ("nano", 64, 32),
    ):
        features = camera_features(image)
        batch = random_batch(features, episodes, sizes.steps, SEED).to(device)
        stepper = Stepper(features, dataclasses.replace(sizes, preset=name), device, plain=False)
        row: dict[str, Any] = {"image": image, "episodes": episodes, "steps": sizes.steps}
        for way in ("recorded_ms", "not_recorded_ms"):
            for seed in range(3):
                stepper.step(batch, seed)
            row[way] = 1e3 * statistics.median(
                measure(lambda s=stepper, b=batch: s.step(b, 3), device) for _ in range(10)
            )
            stepper.graphed = None
            release(device)
        rows[name] = row
        print(json.dumps({name: row}), flush=True)
        del stepper
        release(device)
    return rows
