"""Time the state-space layer: ours, transformers' and mamba-ssm's, with equal weights."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.mamba_peer import MambaSsmLayer
from benchmarks.performance.memory import release
from benchmarks.performance.peers import reported
from benchmarks.performance.sizes import SEED, Sizes
from benchmarks.timing import take_turns
from benchmarks.transformers_peer import mamba2_mixer
from chameleon_policy import SSMConfig, fuse
from chameleon_policy.policy.presets import SLOW_HALF_LIFE
from chameleon_policy.policy.ssm import SelectiveSSM

LAYER_PEERS = ("transformers", "mamba-ssm")


def state_space(sizes: Sizes, device: torch.device, peers: Sequence[str]) -> dict[str, Any]:
    """Time forward and backward pass of the paper's slow layer; bfloat16 autocast on a GPU."""
    torch.manual_seed(SEED)
    config = SSMConfig(expand=1, state=128, half_life=SLOW_HALF_LIFE)
    ours = SelectiveSSM(512, config).to(device)
    (fused,) = fuse(nn.ModuleList([ours]))
    layers: dict[str, Callable[[Tensor], Tensor]] = {"ours": lambda inputs: fused(inputs, None)[0]}
    result: dict[str, Any] = {"width": 512, "state": 128, "shapes": {}, "left_out": {}}
    for name in peers:
        with reported(name, result["left_out"]):
            layers[name] = ssm_peer(name, ours)
    for streams, steps in sizes.ssm:
        shape = f"{streams} x {steps}"
        row = compared(layers, (streams, steps, 512), device, result["left_out"])
        result["shapes"][shape] = row
        print(json.dumps({shape: row}), flush=True)
        release(device)
    result["speedup_best_peer"] = min(row["speedup_best_peer"] for row in result["shapes"].values())
    return result


def compared(
    layers: Mapping[str, Callable[[Tensor], Tensor]],
    shape: tuple[int, int, int],
    device: torch.device,
    left_out: dict[str, Any],
) -> dict[str, Any]:
    """Time the layers on inputs of one shape (streams, steps, width), and compare their outputs."""
    autocast = torch.autocast("cuda", torch.bfloat16) if device.type == "cuda" else nullcontext()
    inputs = torch.randn(shape, device=device, requires_grad=True)
    direction = torch.randn(shape, device=device)

    def run(layer: Callable[[Tensor], Tensor]) -> None:
        with autocast:
            output = layer(inputs)
        output.backward(direction.to(output.dtype))

    candidates, errors = {}, {}
    with torch.no_grad(), autocast:
        expected = layers["ours"](inputs[:64])
    for name, layer in layers.items():
        with reported(f"{name} at {shape[0]} x {shape[1]}", left_out):
            with torch.no_grad(), autocast:
                errors[name] = ((layer(inputs[:64]) - expected).norm() / expected.norm()).item()
            run(layer)
            candidates[name] = partial(run, layer)
        release(device)
    seconds = take_turns(candidates, device, rounds=7)
    best = min((value for name, value in seconds.items() if name != "ours"), default=float("nan"))
    return {
        "forward_backward_ms": {name: 1e3 * value for name, value in seconds.items()},
        "relative_difference_to_ours": errors,
        "speedup_best_peer": best / seconds["ours"],
    }


def ssm_peer(name: str, ours: SelectiveSSM) -> Callable[[Tensor], Tensor]:
    """Return another implementation of the layer, with our weights."""
    if name == "transformers":
        return mamba2_mixer(ours)  # type: ignore[no-any-return]
    return MambaSsmLayer(ours)
