"""`make bench`: what a control step costs as an episode grows, and the scan against its alternatives.

    python -m benchmarks.speed                  two CPU cores, nano policy on state observations
    python -m benchmarks.speed --device cuda    a GPU, paper-size policy on two 224 x 224 views

Prints tables and writes runs/speed-<device>.json; a published figure goes to docs/results/ with `--out`.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
import tyro
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.inputs import random_observation
from benchmarks.mamba2_oracle import mamba2_mixer
from benchmarks.timing import take_turns
from chameleon_policy import ChameleonPolicy, Features, ObjectSlots, SSMConfig, preset
from chameleon_policy.policy.presets import SLOW_HALF_LIFE, budget_features
from chameleon_policy.policy.ssm import SelectiveSSM
from chameleon_policy.report.provenance import write_result

SEED = 0
CHECKPOINTS = (10, 1_000, 10_000)
STATE_FEATURES = Features(objects=ObjectSlots(count=5, size=8), proprioception=10, action=10, horizon=16)


def control_over_time(device: torch.device) -> dict[str, Any]:
    """Stream 10,000 steps, keep the memory at each checkpoint, and let the checkpoints take turns at the next step."""
    name, features = ("paper", budget_features()) if device.type == "cuda" else ("nano", STATE_FEATURES)
    policy = ChameleonPolicy(preset(name), features, with_control_jepa=False).eval().to(device)
    generator = torch.Generator().manual_seed(SEED)
    observations = [random_observation(features, (1,), generator) for _ in range(16)]
    state, kept = policy.initial_state(), {}
    for t in track(range(CHECKPOINTS[-1]), description=f"Streaming into the {name} policy"):
        state = policy.observe(observations[t % len(observations)], state)
        if t + 1 in CHECKPOINTS:
            kept[str(t + 1)] = state
    observe = take_turns({t: partial(policy.observe, observations[0], s) for t, s in kept.items()}, device, rounds=200)
    act = take_turns({t: partial(policy.act, s) for t, s in kept.items()}, device, rounds=5)
    first = observe[str(CHECKPOINTS[0])]
    rows = {
        t: {
            "observe_ms": 1e3 * observe[t],
            "observe_ratio_to_first": observe[t] / first,
            "act_50_steps_ms": 1e3 * act[t],
            "state_bytes": s.nbytes,
        }
        for t, s in kept.items()
    }
    return {"preset": name, "at_step": rows}


def scan_against_alternatives(device: torch.device) -> dict[str, Any]:
    """Our scan, a loop of our step, and transformers' Mamba2Mixer, the slow layer of the paper, equal weights."""
    torch.manual_seed(SEED)
    config = SSMConfig(expand=1, state=128, half_life=SLOW_HALF_LIFE)
    ours = SelectiveSSM(512, config).to(device)
    theirs = mamba2_mixer(ours)
    streams = 74 if device.type == "cuda" else 8
    results: dict[str, Any] = {"streams": streams, "width": 512, "state": 128, "chunk": config.chunk, "lengths": {}}
    for length in (64, 256):
        inputs = torch.randn(streams, length, 512, device=device)

        def scan(inputs: torch.Tensor = inputs) -> torch.Tensor:
            return ours.scan(inputs, ours.initial_state(len(inputs)))[0]

        def loop(inputs: torch.Tensor = inputs) -> torch.Tensor:
            state, outputs = ours.initial_state(len(inputs)), []
            for current in inputs.unbind(1):
                output, state = ours.step(current, state)
                outputs.append(output)
            return torch.stack(outputs, dim=1)

        def transformers_layer(inputs: torch.Tensor = inputs) -> torch.Tensor:
            return theirs(inputs)

        difference = (scan() - transformers_layer()).abs().max() / scan().abs().max()
        candidates = {"scan": scan, "step_loop": loop, "transformers": transformers_layer}
        trained = {name: (lambda f=function: f().sum().backward()) for name, function in candidates.items()}
        with torch.no_grad():
            forward = take_turns(candidates, device, rounds=7)
        both = take_turns(trained, device, rounds=5)
        results["lengths"][str(length)] = {
            "relative_difference_to_transformers": difference.item(),
            "forward_ms": {name: 1e3 * value for name, value in forward.items()},
            "forward_backward_ms": {name: 1e3 * value for name, value in both.items()},
            "forward_ratio_to_scan": {name: value / forward["scan"] for name, value in forward.items()},
            "forward_backward_ratio_to_scan": {name: value / both["scan"] for name, value in both.items()},
        }
    return results


def print_tables(console: Console, control: dict[str, Any], scan: dict[str, Any]) -> None:
    """The same figures as in the JSON, for people."""
    table = Table(title=f"One control step of the {control['preset']} policy as the episode grows")
    for column in ("t", "observe", "ratio", "act (50 steps)", "memory"):
        table.add_column(column, justify="right")
    for t, row in control["at_step"].items():
        table.add_row(
            f"{int(t):,}",
            f"{row['observe_ms']:.2f} ms",
            f"{row['observe_ratio_to_first']:.2f}",
            f"{row['act_50_steps_ms']:.1f} ms",
            f"{row['state_bytes'] / 2**20:.2f} MiB",
        )
    console.print(table)
    table = Table(title=f"The slow SSM of the paper, {scan['streams']} token streams, time relative to our scan")
    for column in ("length", "pass", "our scan", "loop of steps", "transformers"):
        table.add_column(column, justify="right")
    for length, row in scan["lengths"].items():
        for key, label in (("forward", "forward"), ("forward_backward", "forward + backward")):
            ratio = row[f"{key}_ratio_to_scan"]
            table.add_row(
                length,
                label,
                f"{row[f'{key}_ms']['scan']:.1f} ms",
                f"{ratio['step_loop']:.2f} x",
                f"{ratio['transformers']:.2f} x",
            )
    console.print(table)


def main(device: Literal["cpu", "cuda"] = "cpu", out: Path | None = None) -> None:
    """Measure, print, and write the result.

    Args:
        device: Where to run.
        out: File to write; runs/speed-<device>.json by default.
    """
    torch.manual_seed(SEED)
    target = torch.device(device)
    result = {"control": control_over_time(target), "scan": scan_against_alternatives(target)}
    print_tables(Console(), result["control"], result["scan"])
    path = out or Path("runs") / f"speed-{device}.json"
    write_result(path, result, command=" ".join(["python -m benchmarks.speed", *sys.argv[1:]]), seeds=[SEED])
    print(f"Written to {path}")


if __name__ == "__main__":
    tyro.cli(main)
