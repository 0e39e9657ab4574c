"""Measure a control tick: `observe` and `act`, early and late in an episode, next to LeRobot's."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from benchmarks import lerobot_peer
from benchmarks.inputs import random_observation
from benchmarks.performance.peers import reported
from benchmarks.performance.sizes import EULER_STEPS, SEED, Sizes
from benchmarks.timing import measure
from chameleon_policy import (
    ChameleonPolicy,
    FastControl,
    MemoryState,
    Observation,
    kernels,
    preset,
)
from chameleon_policy.policy.presets import budget_features

MakePeer = Callable[[torch.device], tuple[Any, lerobot_peer.Act]]

ROBOT_PEERS: dict[str, tuple[MakePeer, int]] = {
    "lerobot ACT": (lerobot_peer.make_act, 1),
    "lerobot Diffusion, DDIM 10": (
        partial(lerobot_peer.make_diffusion, noise_scheduler_type="DDIM", num_inference_steps=10),
        10,
    ),
    "lerobot Diffusion, DDPM 100": (lerobot_peer.make_diffusion, 100),
}
"""Function that makes a LeRobot policy, and the passes of a chunk: with more passes, fewer chunks
are timed.
"""
TURNS = 5


@torch.no_grad()
def control(sizes: Sizes, device: torch.device, peers: Sequence[str]) -> dict[str, Any]:
    """Measure latency of `observe` and `act`, eager and fast, and the accuracy of fast actions."""
    features = budget_features()
    torch.manual_seed(SEED)
    policy = ChameleonPolicy(preset("paper"), features, with_control_jepa=False).eval().to(device)
    generator = torch.Generator().manual_seed(SEED)
    seen = [random_observation(features, (1,), generator) for _ in range(8)]
    start = time.perf_counter()
    fast, state = FastControl(policy), policy.initial_state()
    capture = time.perf_counter() - start
    for observation in seen:
        fast.observe(observation)
        state = policy.observe(observation, state)
    result: dict[str, Any] = {"preset": "paper", "views": 2, "image": 224, "capture_s": capture}
    result["action_error"] = action_errors(policy, fast, state)
    few = max(5, sizes.ticks // 50)
    many = max(5, sizes.ticks // 2)
    result["fast"] = call_times(
        fast, seen, device, sizes.ticks, {1: sizes.ticks, 8: sizes.ticks, 50: many}
    )
    if device.type == "cuda":
        small = FastControl(policy, shared_memory=kernels.LEAST_SHARED_MEMORY)
        small.observe(seen[0])
        result["small_blocks"] = call_times(
            small, seen[:1], device, sizes.ticks, {8: many, 50: many}
        )
    print(json.dumps(result), flush=True)
    result["eager"] = {
        "observe": ticks(lambda: policy.observe(seen[0], state), device, few),
        **{f"act_{n}": ticks(partial(policy.act, state, steps=n), device, few) for n in (8, 50)},
    }
    result["late"] = late_in_an_episode(policy, fast, seen, sizes, device)
    print(json.dumps({name: result[name] for name in ("eager", "late")}), flush=True)
    result["peers"] = {}
    for name in peers:
        with reported(name, result["peers"]):
            result["peers"][name] = lerobot_latency(name, device, sizes.ticks)
    return result


def action_errors(
    policy: ChameleonPolicy, fast: FastControl, state: MemoryState
) -> dict[str, dict[str, float]]:
    """Compare chunks of few Euler steps with those of 50, and fast chunks with eager ones."""
    features = policy.features
    noise = torch.randn(1, features.horizon, features.action, device=policy.device)
    exact = policy.act(state, steps=50, source=noise)
    errors = {}
    for steps in EULER_STEPS:
        eager = policy.act(state, steps=steps, source=noise)
        errors[str(steps)] = {
            "few_steps_to_50": (eager - exact).abs().mean().item(),
            "fast_to_eager": (fast.act(steps=steps, source=noise) - eager).abs().mean().item(),
        }
    return errors


def call_times(
    control: FastControl,
    seen: Sequence[Observation],
    device: torch.device,
    observations: int,
    chunks: Mapping[int, int],
) -> dict[str, dict[str, float]]:
    """Measure latency of `observe`, and of `act` for each number of Euler steps.

    `chunks` has the number of calls to time for each number of Euler steps.
    """
    next_seen = itertools.cycle(seen)
    return {
        "observe": ticks(lambda: control.observe(next(next_seen)), device, observations),
        **{
            f"act_{steps}": ticks(partial(control.act, steps=steps), device, count)
            for steps, count in chunks.items()
        },
    }


def late_in_an_episode(
    policy: ChameleonPolicy,
    fast: FastControl,
    seen: Sequence[Observation],
    sizes: Sizes,
    device: torch.device,
) -> dict[str, Any]:
    """Time `observe` from the memory after t steps; several t take turns.

    The memory after t steps comes from a scan, which gives the same one sooner.
    """
    kept, state, done = {}, policy.initial_state(), 0
    for t in sizes.later:
        while done < t:
            window = min(1000, t - done)
            tokens = torch.randn(
                1, window, policy.features.tokens, policy.config.width, device=device
            )
            _, state = policy.remember(tokens, state)
            done += window
        kept[str(t)] = state
    times: dict[str, list[float]] = {t: [] for t in kept}
    for _ in range(TURNS):
        for t, memory in kept.items():
            fast.state = memory
            times[t] += latencies(
                lambda: fast.observe(seen[0]), device, max(2, sizes.ticks // 4 // TURNS)
            )
    return {
        t: {**percentiles(times[t]), "state_bytes": memory.nbytes} for t, memory in kept.items()
    }


def lerobot_latency(name: str, device: torch.device, count: int) -> dict[str, Any]:
    """Time a LeRobot policy of default size on two views: one chunk of 16 actions."""
    make, passes = ROBOT_PEERS[name]
    policy, act = make(device)
    observation = lerobot_peer.observation(device)
    parameters = sum(parameter.numel() for parameter in policy.parameters())
    row = {
        "parameters": parameters,
        **ticks(lambda: act(observation), device, max(3, count // passes)),
    }
    print(json.dumps({name: row}), flush=True)
    return row


def ticks(function: Callable[[], object], device: torch.device, count: int) -> dict[str, float]:
    """Measure latency of single calls, one after the other, as a robot makes them."""
    return percentiles(latencies(function, device, count))


def latencies(function: Callable[[], object], device: torch.device, count: int) -> list[float]:
    """Return the milliseconds of each of `count` calls, after a warm-up."""
    for _ in range(max(3, count // 50)):
        function()
    return [1e3 * measure(function, device) for _ in range(count)]


def percentiles(times: Sequence[float]) -> dict[str, float]:
    """Return the median and the 99th percentile."""
    ordered, count = sorted(times), len(times)
    return {
        "p50_ms": ordered[count // 2],
        "p99_ms": ordered[min(count - 1, int(0.99 * count))],
        "count": count,
    }
