"""Measure a training step against the plain code: time, memory and losses."""

from __future__ import annotations

import json
import statistics
import time
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from benchmarks.inputs import random_observation
from benchmarks.performance.memory import peak_memory, release
from benchmarks.performance.sizes import SEED, Sizes, camera_features
from benchmarks.timing import measure, synchronize
from chameleon_policy import ChameleonPolicy, EpisodeBatch, Features, fuse, kernels, preset
from chameleon_policy.train.graphs import GraphedLoss


def training(sizes: Sizes, device: torch.device) -> dict[str, Any]:
    """Measure frames a second, peak memory and losses; on a GPU also with small blocks."""
    features = camera_features(sizes.image)
    batch = random_batch(features, sizes.episodes, sizes.steps, SEED).to(device)
    rows: dict[str, dict[str, Any]] = {}
    for name in ("ours", *(["small_blocks"] if device.type == "cuda" else []), "plain"):
        release(device)
        memory = kernels.LEAST_SHARED_MEMORY if name == "small_blocks" else None
        stepper = Stepper(features, sizes, device, plain=name == "plain", shared_memory=memory)
        before = time.perf_counter()
        stepper.step(batch, 0)
        synchronize(device)
        first = time.perf_counter() - before
        for seed in (1, 2):
            stepper.step(batch, seed)
        times = [
            measure(lambda s=stepper: s.step(batch, 3), device)
            for _ in range(5 if name == "plain" else 10)
        ]
        step = statistics.median(times)
        rows[name] = {
            "step_ms": 1e3 * step,
            "frames_per_second": sizes.episodes * sizes.steps / step,
            "peak_memory_bytes": peak_memory(device),
            "first_step_s": first,
        }
        print(json.dumps({name: rows[name]}), flush=True)
        del stepper
    curves = loss_curves(features, sizes, device)
    ours, plain = (rows[name]["peak_memory_bytes"] for name in ("ours", "plain"))
    memory_ratio = None if ours is None else ours / plain
    return {
        "preset": sizes.preset,
        "image": sizes.image,
        "views": 2,
        "episodes": sizes.episodes,
        "steps": sizes.steps,
        **rows,
        "speedup": rows["plain"]["step_ms"] / rows["ours"]["step_ms"],
        "memory_ratio": memory_ratio,
        "curves": curves,
    }


def loss_curves(features: Features, sizes: Sizes, device: torch.device) -> dict[str, Any]:
    """Take the same steps three times: ours, plain, and plain from weights rounded to bfloat16."""
    batches = [
        random_batch(features, sizes.curve_episodes, sizes.steps, 100 + i).to(device)
        for i in range(4)
    ]
    curves = {}
    for name, plain, rounded in (
        ("ours", False, False),
        ("plain", True, False),
        ("plain_rounded", True, True),
    ):
        release(device)
        stepper = Stepper(features, sizes, device, plain=plain, rounded=rounded)
        losses = [stepper.step(batches[i % 4], 1000 + i) for i in range(sizes.curve_steps)]
        curves[name] = torch.stack(losses).float().cpu()
        del stepper
    apart = {
        "ours_to_plain": (curves["ours"] - curves["plain"]).abs().mean().item(),
        "plain_to_plain_rounded": (curves["plain_rounded"] - curves["plain"]).abs().mean().item(),
    }
    print(json.dumps(apart), flush=True)
    every = max(1, sizes.curve_steps // 20)
    return {
        "episodes": sizes.curve_episodes,
        "steps": sizes.curve_steps,
        "mean_absolute_difference": apart,
        **{
            name: [round(value, 5) for value in curve[every - 1 :: every].tolist()]
            for name, curve in curves.items()
        },
    }


class Stepper:
    """A way to take training steps: with fused modules, or with the plain eager reference."""

    def __init__(
        self,
        features: Features,
        sizes: Sizes,
        device: torch.device,
        *,
        plain: bool,
        rounded: bool = False,
        shared_memory: int | None = None,
    ) -> None:
        torch.manual_seed(SEED)
        self.device = device
        self.policy = ChameleonPolicy(preset(sizes.preset), features).to(device).train()
        if not plain:
            fuse(self.policy, shared_memory=shared_memory)
        if rounded:  # what differs by no more than bfloat16 can tell
            with torch.no_grad():
                for parameter in self.policy.parameters():
                    parameter.copy_(parameter.bfloat16())
        trained = [parameter for parameter in self.policy.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=True)
        self.graphed = (
            GraphedLoss(self.policy, self._autocast)
            if device.type == "cuda" and not plain
            else None
        )

    def _autocast(self) -> Any:
        return (
            torch.autocast("cuda", torch.bfloat16) if self.device.type == "cuda" else nullcontext()
        )

    def step(self, batch: EpisodeBatch, seed: int) -> Tensor:
        """Take one optimizer step; return the loss, on the device."""
        torch.manual_seed(seed)
        self.optimizer.zero_grad(set_to_none=True)
        if self.graphed is not None:
            loss = self.graphed(batch)["loss"]
        else:
            with self._autocast():
                result = self.policy.loss(batch, check_values=False, keep_state=False)
            result.total.backward()
            loss = result.total.detach()
        torch.nn.utils.clip_grad_norm_(self.policy.parameters(), 10.0)
        self.optimizer.step()
        self.policy.update_target()
        return loss


def random_batch(features: Features, episodes: int, steps: int, seed: int) -> EpisodeBatch:
    """Return episodes whose actions follow from proprioception, so that a policy can learn."""
    generator = torch.Generator().manual_seed(seed)
    observation = random_observation(features, (episodes, steps), generator)
    actions = torch.tanh(observation.proprioception.cumsum(1) / 4)[..., : features.action]
    return EpisodeBatch(
        observation=observation,
        actions=actions,
        valid=torch.ones(episodes, steps, dtype=torch.bool),
    )
