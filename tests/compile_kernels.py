"""Compiles every kernel of a training step for a GPU that need not be there; nothing is run on it.

python tests/compile_kernels.py 90        prints a line of JSON: the shared memory of every kernel, in bytes
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from benchmarks.performance.sizes import camera_features
from chameleon_policy import ChameleonPolicy, kernels, preset
from chameleon_policy.kernels import one_query
from examples import IMAGE_FEATURES, STATE_FEATURES, make_batch


class AbsentGPU:
    """As much of Triton's driver as compiling needs."""

    def __init__(self, capability: int) -> None:
        self.target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int | None = None) -> int:
        return 0


def main(capability: int) -> None:
    """Training steps of the paper's policy and of the smallest one, with kernels that are compiled and not launched."""
    driver.set_active(AbsentGPU(capability))
    launch, shared = JITFunction.run, {}

    def compile_only(self: JITFunction, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        compiled = launch(self, *arguments, grid=grid, warmup=True, **options)
        shared[self.__name__] = max(shared.get(self.__name__, 0), compiled.metadata.shared)
        return compiled

    JITFunction.run = compile_only
    kernels.enabled = lambda tensor: kernels.compute_dtype(tensor) in kernels.HALF
    one_query.LEAST_QUERIES = 1
    cameras = camera_features(128)
    for config, features, steps in (
        (preset("paper"), STATE_FEATURES, 70),  # more than one chunk of the recurrence
        (preset("paper"), cameras, 3),
        (preset("nano"), IMAGE_FEATURES, 3),
    ):
        policy, batch = ChameleonPolicy(config, features), make_batch(features, 1, steps)
        with torch.autocast("cpu", torch.bfloat16):
            loss = policy.train().loss(batch, check_values=False)
        loss.total.backward()
    print(json.dumps(shared))


if __name__ == "__main__":
    main(int(sys.argv[1]))
