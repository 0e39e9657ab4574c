"""Count what a training step costs at least: floating-point operations and bytes.

    python -m benchmarks.floor --out docs/results/floor.json

Operations are those of matrix products and convolutions in the forward pass, times three for both
passes. Control context and recall ask one question a step, for which keys and values of all tokens
are not needed: those are not counted. Bytes are the outputs of these layers in bfloat16: written
and read once in the forward pass, read again in the backward pass, with their gradient written and
read. Operands of attention and recurrence are left out. The two rates were reached on an H200 with
large, random operands.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import tyro
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.performance.sizes import GPU, camera_features
from benchmarks.performance.training import random_batch
from chameleon_policy import ChameleonPolicy, preset
from chameleon_policy.provenance import write_result

COMMAND = "python -m benchmarks.floor"
SEED = 0
FRAMES = 4
"""Frames of one episode; all counts are in proportion to it."""
OPERATIONS_PER_SECOND, BYTES_PER_SECOND = 790e12, 4.3e12
BYTES_PER_NUMBER = 2 * 5


class Outputs(TorchDispatchMode):
    """A counter of the numbers that linear layers and convolutions put out."""

    LAYERS = (
        torch.ops.aten.mm.default,
        torch.ops.aten.addmm.default,
        torch.ops.aten.convolution.default,
    )

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: Any = (), options: Any = None
    ) -> Any:
        output = function(*arguments, **(options or {}))
        if function in self.LAYERS:
            self.numbers += output.numel()
        return output


def count(function: Callable[[], object]) -> dict[str, float]:
    """Count operations and output bytes of the matrix products and convolutions of a function."""
    with FlopCounterMode(display=False) as counter, Outputs() as outputs, torch.no_grad():
        function()
    return {
        "operations": 3 * counter.get_total_flops(),
        "bytes": outputs.numbers * BYTES_PER_NUMBER,
    }


def spared_by_one_query(policy: ChameleonPolicy, tokens: int) -> dict[str, float]:
    """Count what a frame saves where a single query needs no keys and values of all tokens."""
    width, heads = policy.config.width, policy.config.heads
    keys_and_values = 2 * tokens * width * 2 * width
    instead = 2 * 2 * width**2 + 2 * 2 * (heads - 1) * tokens * width
    attentions = 2 * policy.config.layers
    numbers = attentions * tokens * 2 * width
    return {
        "operations": 3 * attentions * (keys_and_values - instead),
        "bytes": numbers * BYTES_PER_NUMBER,
    }


def main(out: Path | None = None) -> None:
    """Count, print, and write the result.

    Args:
        out: File to write; runs/floor.json by default.
    """
    torch.manual_seed(SEED)
    features = camera_features(GPU.image)
    policy = ChameleonPolicy(preset(GPU.preset), features)
    batch = random_batch(features, 1, FRAMES, SEED)
    with torch.no_grad():
        tokens = policy.event_tokens(batch.observation)
        working = policy.remember(tokens, None)[0][-1].working.flatten(0, 1)
    chunks = torch.randn(FRAMES, features.horizon, features.action)
    parts = {
        "encoders": count(lambda: policy.event_tokens(batch.observation)),
        "memory": count(lambda: policy.remember(tokens, None)),
        "action head": count(lambda: policy.action_flow(working, chunks, 1.0)),
    }
    for name, spared in spared_by_one_query(policy, features.tokens).items():
        parts["memory"][name] -= spared * FRAMES
    frames = GPU.episodes * GPU.steps
    rows = {
        name: {
            "operations": part["operations"] * frames / FRAMES,
            "bytes": part["bytes"] * frames / FRAMES,
            "operations_ms": 1e3 * part["operations"] * frames / FRAMES / OPERATIONS_PER_SECOND,
            "bytes_ms": 1e3 * part["bytes"] * frames / FRAMES / BYTES_PER_SECOND,
        }
        for name, part in parts.items()
    }
    result = {
        "frames": frames,
        "parts": rows,
        "operations_per_second": OPERATIONS_PER_SECOND,
        "bytes_per_second": BYTES_PER_SECOND,
        "operations_ms": sum(row["operations_ms"] for row in rows.values()),
        "bytes_ms": sum(row["bytes_ms"] for row in rows.values()),
    }
    for name, row in rows.items():
        print(
            f"{name}: {row['operations'] / 1e12:.1f} TFLOP, {row['operations_ms']:.0f} ms; "
            f"bytes {row['bytes_ms']:.0f} ms"
        )
    write_result(out or Path("runs/floor.json"), result, command=COMMAND, seeds=[SEED])


if __name__ == "__main__":
    tyro.cli(main, prog=COMMAND)
