"""Speed of training and control, ours and others' in one run: `make bench`, or on a GPU

    python -m benchmarks.performance --device cuda --out docs/results/performance-h200.json

Parts: `training` (our step against our own plain code), `control` (against LeRobot's Diffusion and ACT policies), `ssm` (the
state-space layer against transformers and mamba-ssm), `length` (cost against episode length). A peer that is not installed
is left out and named; --peers names a folder with packages that are not.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
import tyro
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks import lerobot_peer
from benchmarks.inputs import random_observation
from benchmarks.mamba2_oracle import mamba2_mixer
from benchmarks.mamba_peer import MambaSsmLayer
from benchmarks.timing import measure, synchronize, take_turns
from chameleon_policy import (
    ChameleonPolicy,
    EpisodeBatch,
    FastControl,
    Features,
    Language,
    SSMConfig,
    View,
    kernels,
    preset,
)
from chameleon_policy.policy.presets import SLOW_HALF_LIFE, budget_features
from chameleon_policy.policy.ssm import SelectiveSSM
from chameleon_policy.report.provenance import write_result
from chameleon_policy.train.graphs import GraphedLoss

SEED = 0
EULER_STEPS = (1, 2, 4, 8, 16, 50)
Part = Literal["training", "control", "ssm", "length"]


@dataclass(frozen=True)
class Sizes:
    """What is measured: the shapes that this policy is trained with on a GPU, small ones on a CPU."""

    preset: str
    image: int
    episodes: int
    steps: int
    curve_episodes: int
    curve_steps: int
    ticks: int
    ssm: tuple[tuple[int, int], ...]
    lengths: tuple[int, ...]
    later: tuple[int, ...]


GPU = Sizes("paper", 128, 64, 64, 8, 200, 1000, ((4736, 64), (2176, 64), (2368, 256), (2368, 512)),
            (32, 128, 512, 2048), (10, 1_000, 100_000))  # fmt: skip
CPU = Sizes("nano", 64, 2, 16, 2, 5, 20, ((16, 64), (8, 256)), (32, 128), (10, 1_000))


def camera_features(size: int) -> Features:
    """Two cameras, as on Camo's robot."""
    return Features(
        views=(View(name="third", height=size, width=size), View(name="wrist", height=size, width=size)),
        proprioception=10, action=10, horizon=16, language=Language(width=768, encoder="none"),
    )  # fmt: skip


def random_batch(features: Features, episodes: int, steps: int, seed: int) -> EpisodeBatch:
    """Episodes in which actions follow from proprioception, so that there is something to learn."""
    generator = torch.Generator().manual_seed(seed)
    observation = random_observation(features, (episodes, steps), generator)
    actions = torch.tanh(observation.proprioception.cumsum(1) / 4)[..., : features.action]
    return EpisodeBatch(observation=observation, actions=actions, valid=torch.ones(episodes, steps, dtype=torch.bool))


class Stepper:
    """One way to take training steps: our own, or the plain eager reference."""

    def __init__(
        self, features: Features, sizes: Sizes, device: torch.device, *, plain: bool, rounded: bool = False
    ) -> None:
        torch.manual_seed(SEED)
        self.device, self.plain = device, plain
        self.policy = ChameleonPolicy(preset(sizes.preset), features).to(device).train()
        if rounded:  # what differs by no more than bfloat16 can tell
            with torch.no_grad():
                for parameter in self.policy.parameters():
                    parameter.copy_(parameter.bfloat16())
        trained = [parameter for parameter in self.policy.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=True)
        self.graphed = GraphedLoss(self.policy, self._autocast) if device.type == "cuda" and not plain else None

    def _autocast(self) -> Any:
        return torch.autocast("cuda", torch.bfloat16) if self.device.type == "cuda" else nullcontext()

    def step(self, batch: EpisodeBatch, seed: int) -> Tensor:
        """One optimizer step; returns the loss, on the device."""
        torch.manual_seed(seed)
        self.optimizer.zero_grad(set_to_none=True)
        if self.graphed is not None:
            loss = self.graphed(batch)["loss"]
        else:
            with kernels.plain_pytorch() if self.plain else nullcontext(), self._autocast():
                result = self.policy.loss(batch, check_values=False)
            result.total.backward()
            loss = result.total.detach()
        torch.nn.utils.clip_grad_norm_(self.policy.parameters(), 10.0)
        self.optimizer.step()
        self.policy.update_target()
        return loss


def peak_memory(device: torch.device) -> int | None:
    """Bytes that tensors had at most since the last reset; a CPU does not count them."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None


def training(sizes: Sizes, device: torch.device) -> dict[str, Any]:
    """Frames a second, peak memory and loss curves of our step and of the plain one."""
    features = camera_features(sizes.image)
    batch = random_batch(features, sizes.episodes, sizes.steps, SEED).to(device)
    rows: dict[str, dict[str, Any]] = {}
    for name in ("ours", "plain"):
        release(device)
        stepper = Stepper(features, sizes, device, plain=name == "plain")
        before = time.perf_counter()
        stepper.step(batch, 0)
        synchronize(device)
        first = time.perf_counter() - before
        for seed in (1, 2):
            stepper.step(batch, seed)
        times = [measure(lambda s=stepper: s.step(batch, 3), device) for _ in range(10 if name == "ours" else 5)]
        step = statistics.median(times)
        rows[name] = {
            "step_ms": 1e3 * step, "frames_per_second": sizes.episodes * sizes.steps / step,
            "peak_memory_bytes": peak_memory(device), "first_step_s": first,
        }  # fmt: skip
        print(json.dumps({name: rows[name]}), flush=True)
        del stepper
    curves = loss_curves(features, sizes, device)
    ours, plain = (rows[name]["peak_memory_bytes"] for name in ("ours", "plain"))
    memory_ratio = None if ours is None else ours / plain
    return {
        "preset": sizes.preset, "image": sizes.image, "views": 2, "episodes": sizes.episodes, "steps": sizes.steps,
        **rows, "speedup": rows["plain"]["step_ms"] / rows["ours"]["step_ms"],
        "memory_ratio": memory_ratio,
        "curves": curves,
    }  # fmt: skip


def loss_curves(features: Features, sizes: Sizes, device: torch.device) -> dict[str, Any]:
    """The same steps, batches and noise three times: ours, plain, and plain from weights rounded to bfloat16."""
    batches = [random_batch(features, sizes.curve_episodes, sizes.steps, 100 + i).to(device) for i in range(4)]
    curves = {}
    for name, plain, rounded in (("ours", False, False), ("plain", True, False), ("plain_rounded", True, True)):
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
        "episodes": sizes.curve_episodes, "steps": sizes.curve_steps, "mean_absolute_difference": apart,
        **{name: [round(value, 5) for value in curve[every - 1 :: every].tolist()] for name, curve in curves.items()},
    }  # fmt: skip


def ticks(function: Callable[[], object], device: torch.device, count: int) -> dict[str, float]:
    """Latency of single calls, one after the other, as a robot makes them."""
    for _ in range(max(3, count // 50)):
        function()
    times = sorted(1e3 * measure(function, device) for _ in range(count))
    return {"p50_ms": times[count // 2], "p99_ms": times[min(count - 1, int(0.99 * count))], "count": count}


@torch.no_grad()
def control(sizes: Sizes, device: torch.device, peers: Sequence[str]) -> dict[str, Any]:
    """Latency of `observe` and `act`, eager and fast, early and late in an episode; accuracy against Euler steps; peers."""
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
    noise = torch.randn(1, features.horizon, features.action, device=device)
    exact = policy.act(state, steps=50, source=noise)
    result: dict[str, Any] = {"preset": "paper", "views": 2, "image": 224, "capture_s": capture}
    result["action_error"] = {
        str(steps): {
            "few_steps_to_50": (policy.act(state, steps=steps, source=noise) - exact).abs().mean().item(),
            "fast_to_eager": (
                fast.act(steps=steps, source=noise) - policy.act(state, steps=steps, source=noise)
            ).abs().mean().item(),
        }
        for steps in EULER_STEPS
    }  # fmt: skip
    position = iter(range(10**9))
    few = max(5, sizes.ticks // 50)
    result["fast"] = {
        "observe": ticks(lambda: fast.observe(seen[next(position) % len(seen)]), device, sizes.ticks),
        **{
            f"act_{n}": ticks(partial(fast.act, steps=n), device, sizes.ticks if n < 50 else max(5, sizes.ticks // 2))
            for n in (1, 8, 50)
        },
    }
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


def late_in_an_episode(
    policy: ChameleonPolicy, fast: FastControl, seen: Sequence[Any], sizes: Sizes, device: torch.device
) -> dict[str, Any]:
    """`observe` from the memory after t steps. The way there is taken by scanning, which gives the same memory sooner."""
    rows, state, done = {}, policy.initial_state(), 0
    for t in sizes.later:
        while done < t:
            window = min(1000, t - done)
            tokens = torch.randn(1, window, policy.features.tokens, policy.config.width, device=device)
            _, state = policy.remember(tokens, state)
            done += window
        fast.state = state
        rows[str(t)] = {
            **ticks(lambda: fast.observe(seen[0]), device, max(5, sizes.ticks // 4)),
            "state_bytes": state.nbytes,
        }
    return rows


def lerobot_latency(name: str, device: torch.device, count: int) -> dict[str, Any]:
    """A LeRobot policy of default size on the same two views: one chunk of 16 actions from the current observation."""
    make = {
        "lerobot ACT": partial(lerobot_peer.make_act, device),
        "lerobot Diffusion, DDIM 10": partial(
            lerobot_peer.make_diffusion, device, noise_scheduler_type="DDIM", num_inference_steps=10
        ),
        "lerobot Diffusion, DDPM 100": partial(lerobot_peer.make_diffusion, device),
    }[name]
    policy, act = make()
    observation = lerobot_peer.observation(device)
    rounds = {"lerobot ACT": count, "lerobot Diffusion, DDIM 10": count // 10, "lerobot Diffusion, DDPM 100": count // 100}
    parameters = sum(parameter.numel() for parameter in policy.parameters())
    row = {"parameters": parameters, **ticks(lambda: act(observation), device, max(3, rounds[name]))}
    print(json.dumps({name: row}), flush=True)
    return row


def state_space(sizes: Sizes, device: torch.device, peers: Sequence[str]) -> dict[str, Any]:
    """Forward and backward pass of the paper's slow layer, equal weights, bfloat16 autocast on a GPU."""
    torch.manual_seed(SEED)
    config = SSMConfig(expand=1, state=128, half_life=SLOW_HALF_LIFE)
    ours = SelectiveSSM(512, config).to(device)
    layers: dict[str, Callable[[Tensor], Tensor]] = {"ours": lambda inputs: ours(inputs, None)[0]}
    result: dict[str, Any] = {"width": 512, "state": 128, "shapes": {}, "left_out": {}}
    for name in peers:
        with reported(name, result["left_out"]):
            layers[name] = ssm_peer(name, ours)
    autocast = torch.autocast("cuda", torch.bfloat16) if device.type == "cuda" else nullcontext()
    for streams, steps in sizes.ssm:
        inputs = torch.randn(streams, steps, 512, device=device, requires_grad=True)
        direction = torch.randn(streams, steps, 512, device=device)

        def run(layer: Callable[[Tensor], Tensor], inputs: Tensor = inputs, direction: Tensor = direction) -> None:
            with autocast:
                output = layer(inputs)
            output.backward(direction.to(output.dtype))

        candidates, errors = {}, {}
        with torch.no_grad(), autocast:
            expected = ours(inputs[:64], None)[0]
        for name, layer in layers.items():
            with reported(f"{name} at {streams} x {steps}", result["left_out"]):
                with torch.no_grad(), autocast:
                    errors[name] = ((layer(inputs[:64]) - expected).norm() / expected.norm()).item()
                run(layer)
                candidates[name] = partial(run, layer)
            release(device)
        seconds = take_turns(candidates, device, rounds=7)
        best = min((value for name, value in seconds.items() if name != "ours"), default=float("nan"))
        result["shapes"][f"{streams} x {steps}"] = {
            "forward_backward_ms": {name: 1e3 * value for name, value in seconds.items()},
            "relative_difference_to_ours": errors, "speedup_best_peer": best / seconds["ours"],
        }  # fmt: skip
        print(json.dumps({f"{streams} x {steps}": result["shapes"][f"{streams} x {steps}"]}), flush=True)
        del inputs, direction, candidates
        release(device)
    result["speedup_best_peer"] = min(row["speedup_best_peer"] for row in result["shapes"].values())
    return result


def ssm_peer(name: str, ours: SelectiveSSM) -> Callable[[Tensor], Tensor]:
    """Another implementation of the layer, with our weights."""
    if name == "transformers":
        return mamba2_mixer(ours)  # type: ignore[no-any-return]
    return MambaSsmLayer(ours)


def length(sizes: Sizes, device: torch.device) -> dict[str, Any]:
    """Memory layers and action head, forward and backward, against the length of an episode; two episodes each."""
    features = camera_features(128 if device.type == "cuda" else 64)
    torch.manual_seed(SEED)
    policy = ChameleonPolicy(preset(sizes.preset), features).to(device).train()
    autocast = torch.autocast("cuda", torch.bfloat16) if device.type == "cuda" else nullcontext()
    rows = {}
    for steps in sizes.lengths:
        tokens = torch.randn(2, steps, features.tokens, policy.config.width, device=device, requires_grad=True)
        row = {}
        for name in ("ours", "plain"):

            def run(plain: bool = name == "plain", tokens: Tensor = tokens) -> None:
                with kernels.plain_pytorch() if plain else nullcontext(), autocast:
                    working = policy.remember(tokens, None)[0][-1].working
                working.sum().backward()

            run()
            release(device)
            seconds = statistics.median(measure(run, device) for _ in range(3))
            row[name] = {"ms": 1e3 * seconds, "ms_per_step": 1e3 * seconds / steps, "peak_memory_bytes": peak_memory(device)}
        rows[str(steps)] = row
    print(json.dumps(rows), flush=True)
    return {"episodes": 2, "tokens": features.tokens, "lengths": rows}


def release(device: torch.device) -> None:
    """Forget what was allocated before."""
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


@contextmanager
def reported(name: str, left_out: dict[str, Any]) -> Iterator[None]:
    """A peer that cannot be run is named with the reason, and does not end the run."""
    try:
        yield
    except (ImportError, KeyError, RuntimeError, AssertionError, ValueError, TypeError) as error:
        left_out[name] = {"left_out": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:200]}
        print(f"{name} left out: {left_out[name]['left_out']}", flush=True)


def summary(result: dict[str, Any]) -> dict[str, float]:
    """The figures that people ask for first."""
    found: dict[str, float] = {}
    if "training" in result:
        found["train_speedup"] = result["training"]["speedup"]
        found["train_memory_ratio"] = result["training"]["memory_ratio"]
    if "control" in result:
        fast = result["control"]["fast"]
        found |= {"act50_ms": fast["act_50"]["p50_ms"], "act8_ms": fast["act_8"]["p50_ms"]}
        found |= {"observe224_ms": fast["observe"]["p50_ms"]}
    if "ssm" in result:
        found["ssm_speedup_best_peer"] = result["ssm"]["speedup_best_peer"]
    return found


def print_table(result: dict[str, Any], device: torch.device) -> None:
    """One table of everything."""
    same = "" if device.type == "cuda" else "; ours and plain are the same code here, so their ratio is noise"
    table = Table(title=f"Speed on {device}{same}")
    for column in ("what", "ours", "others", "ratio"):
        table.add_column(column, justify="left" if column == "what" else "right")
    if "training" in result:
        row = result["training"]
        ours, plain = row["ours"], row["plain"]
        table.add_row(
            f"training step, {row['preset']}, {row['episodes']} x {row['steps']} frames, two views",
            f"{ours['step_ms']:.0f} ms", f"{plain['step_ms']:.0f} ms plain", f"{row['speedup']:.2f} x",
        )  # fmt: skip
        if row["memory_ratio"] is not None:
            table.add_row(
                "peak memory of it", f"{ours['peak_memory_bytes'] / 2**30:.1f} GiB",
                f"{plain['peak_memory_bytes'] / 2**30:.1f} GiB plain", f"{row['memory_ratio']:.2f}",
            )  # fmt: skip
    if "control" in result:
        row = result["control"]
        for name in ("observe", "act_8", "act_50"):
            fast, eager = row["fast"][name], row["eager"][name]
            table.add_row(
                f"{name.replace('_', ' ')}, paper, two 224 x 224 views",
                f"{fast['p50_ms']:.2f} ms (p99 {fast['p99_ms']:.2f})", f"{eager['p50_ms']:.1f} ms eager",
                f"{eager['p50_ms'] / fast['p50_ms']:.1f} x",
            )  # fmt: skip
        whole = row["fast"]["observe"]["p50_ms"] + row["fast"]["act_8"]["p50_ms"]
        for name, peer in row["peers"].items():
            if "p50_ms" in peer:
                table.add_row(
                    "a chunk of 16 actions from new pictures", f"{whole:.2f} ms", f"{peer['p50_ms']:.1f} ms {name}",
                    f"{peer['p50_ms'] / whole:.1f} x",
                )  # fmt: skip
        for t, late in row["late"].items():
            table.add_row(f"observe at t = {int(t):,}", f"{late['p50_ms']:.2f} ms", "", "")
    for shape, row in result.get("ssm", {}).get("shapes", {}).items():
        seconds = row["forward_backward_ms"]
        for name in [name for name in seconds if name != "ours"]:
            table.add_row(
                f"state-space layer, {shape}", f"{seconds['ours']:.1f} ms", f"{seconds[name]:.1f} ms {name}",
                f"{seconds[name] / seconds['ours']:.2f} x",
            )  # fmt: skip
    for steps, row in result.get("length", {}).get("lengths", {}).items():
        table.add_row(
            f"memory layers, episodes of {steps} steps", f"{row['ours']['ms_per_step']:.3f} ms/step",
            f"{row['plain']['ms_per_step']:.3f} ms/step plain", f"{row['plain']['ms'] / row['ours']['ms']:.2f} x",
        )  # fmt: skip
    Console(width=140).print(table)


def main(
    device: Literal["cpu", "cuda"] = "cpu",
    parts: tuple[Part, ...] = ("training", "control", "ssm", "length"),
    peers: Path | None = None,
    out: Path | None = None,
) -> None:
    """Measure, print, and write the result.

    Args:
        device: Where to run.
        parts: What to measure.
        peers: Folder to look for lerobot and mamba_ssm in, beside what is installed.
        out: File to write; runs/performance-<device>.json by default.
    """
    target, sizes = torch.device(device), GPU if device == "cuda" else CPU
    torch.backends.cudnn.benchmark = True
    if peers is not None:
        sys.path.append(str(peers))
    robots = ("lerobot ACT", "lerobot Diffusion, DDIM 10", "lerobot Diffusion, DDPM 100")
    layers = ("transformers", "mamba-ssm")
    path = out or Path("runs") / f"performance-{device}.json"
    kept = [
        argument for before, argument in zip(["", *sys.argv], sys.argv, strict=False) if "--out" not in (before, argument)
    ]
    command = " ".join(["python -m benchmarks.performance", *kept[1:]])
    jobs: dict[str, Callable[[], dict[str, Any]]] = {
        "training": partial(training, sizes, target), "control": partial(control, sizes, target, robots),
        "ssm": partial(state_space, sizes, target, layers), "length": partial(length, sizes, target),
    }  # fmt: skip
    result: dict[str, Any] = {}
    for name in parts:
        result[name] = jobs[name]()
        release(target)
        # After every part, so that a run that is cut off leaves what it has.
        write_result(path, {**summary(result), **result}, command=command, seeds=[SEED])
    print_table(result, target)
    print(f"Written to {path}")


if __name__ == "__main__":
    tyro.cli(main)
