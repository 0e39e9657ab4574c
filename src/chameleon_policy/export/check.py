"""Compare an exported policy with the policy itself over a rollout.

Both get the same observations and noise, control step by control step, and keep their own memory.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from chameleon_policy.export.manifest import Runtime
from chameleon_policy.export.programs import observation_tensors
from chameleon_policy.export.runtime import ExportedPolicy
from chameleon_policy.policy import Observation, VisuomotorPolicy
from chameleon_policy.policy.normalizer import Range

TICKS = 20
ACT_EVERY = 4
SEED = 0
BATCHES = (1, 3)
"""Numbers of robots compared when the batch dimension is free; neither is the traced one."""
TOLERANCE = 1e-4
"""Largest difference allowed, as a share of the tensor's largest value.

docs/export.md has measured differences.
"""


@dataclass(frozen=True, kw_only=True)
class Deviations:
    """Largest differences to the policy over a rollout, as shares of the tensor's largest value."""

    runtime: Runtime
    batch_size: int
    memory: float
    """Of all tensors carried from step to step, except `working`."""
    working: float
    """Of the working state, which the head reads."""
    actions: float

    @property
    def largest(self) -> float:
        """The largest of the three; NaN if one of them is NaN."""
        shares = (self.memory, self.working, self.actions)
        return math.nan if any(map(math.isnan, shares)) else max(shares)


def check_export(
    directory: Path,
    policy: VisuomotorPolicy,
    runtimes: tuple[Runtime, ...],
    steps: int,
    batch_size: int | None,
) -> tuple[Deviations, ...]:
    """Compare the programs in a directory with the policy.

    Raise a ValueError if they differ by more than `TOLERANCE`.
    """
    compared = []
    for runtime in runtimes:
        exported = ExportedPolicy(directory, runtime)
        for robots in BATCHES if batch_size is None else (batch_size,):
            deviations = compare_rollouts(exported, policy, runtime, steps, robots)
            compared.append(deviations)
            if not deviations.largest <= TOLERANCE:  # so that NaN fails too
                raise ValueError(
                    f"the {runtime} programs differ from the policy: over {TICKS} control steps "
                    f"of {robots} robots by {deviations.memory:.1e} in the memory, "
                    f"{deviations.working:.1e} in the working state and "
                    f"{deviations.actions:.1e} in the actions "
                    f"(allowed: {TOLERANCE:.0e} of the largest value). Nothing was written; "
                    "please report it, with the method and the versions of torch and onnxruntime"
                )
    return tuple(compared)


def compare_rollouts(
    exported: ExportedPolicy, policy: VisuomotorPolicy, runtime: Runtime, steps: int, robots: int
) -> Deviations:
    """Run both for `TICKS` random observations, acting every `ACT_EVERY`; return the deviations."""
    generator = torch.Generator().manual_seed(SEED)
    state, memory = policy.initial_state(robots), exported.initial_state(robots)
    largest: dict[str, float] = {}
    differences: dict[str, float] = {}

    def compare(name: str, actual: np.ndarray[Any, Any], reference: Tensor) -> None:
        expected = reference.detach().cpu().numpy().astype(np.float64)
        largest[name] = max(largest.get(name, 0.0), float(np.abs(expected).max()))
        # np.maximum keeps NaN; max() may lose it.
        differences[name] = float(
            np.maximum(differences.get(name, 0.0), np.abs(actual - expected).max())
        )

    for tick in range(TICKS):
        observation = random_observation(policy, robots, generator)
        state = policy.observe(observation, state)
        memory = exported.observe(as_arrays(observation), memory)
        for name, tensor in state.tensors().items():
            compare(name, memory[name], tensor)
        if tick % ACT_EVERY == 0:
            noise = torch.randn(
                robots, policy.features.horizon, policy.features.action, generator=generator
            )
            compare(
                "actions",
                exported.act(memory, noise=noise.numpy()),
                policy.act(state, steps=steps, source=noise),
            )
    shares = {name: _share(differences[name], largest[name]) for name in differences}
    carried = [share for name, share in shares.items() if name not in ("working", "actions")]
    return Deviations(
        runtime=runtime,
        batch_size=robots,
        memory=float(np.max(carried)),
        working=shares["working"],
        actions=shares["actions"],
    )


def check_details(deviations: tuple[Deviations, ...]) -> dict[str, Any]:
    """Return the settings and deviations of the comparison, as they stand in `policy.json`."""
    return {
        "ticks": TICKS,
        "act_every": ACT_EVERY,
        "seed": SEED,
        "tolerance": TOLERANCE,
        "errors": [*map(asdict, deviations)],
    }


def random_observation(
    policy: VisuomotorPolicy, robots: int, generator: torch.Generator
) -> Observation:
    """Draw a batch of observations: vectors in the ranges seen in training, images of noise."""
    features, statistics = policy.features, policy.statistics

    def within(limits: Range | None, size: int) -> Tensor:
        low, high = (limits.low, limits.high) if limits else ((-1.0,) * size, (1.0,) * size)
        bottom, top = torch.tensor(low), torch.tensor(high)
        return bottom + (top - bottom) * torch.rand(robots, size, generator=generator)

    objects, language = features.objects, features.language
    shapes = {view.name: (robots, view.height, view.width, 3) for view in features.views}
    slots = None if objects is None else within(statistics.objects, objects.count * objects.size)
    return Observation(
        images={
            name: torch.randint(256, shape, generator=generator, dtype=torch.uint8)
            for name, shape in shapes.items()
        },
        proprioception=within(statistics.proprioception, features.proprioception),
        objects=None
        if slots is None or objects is None
        else slots.view(robots, objects.count, objects.size),
        instruction=None
        if language is None
        else torch.randn(robots, language.width, generator=generator),
    )


def as_arrays(observation: Observation) -> dict[str, Any]:
    """Convert an observation to the arrays that `ExportedPolicy.observe` takes."""
    arrays = {name: tensor.numpy() for name, tensor in observation_tensors(observation).items()}
    images = {
        name.removeprefix("images."): array
        for name, array in arrays.items()
        if name.startswith("images.")
    }
    return {
        "images": images,
        **{name: array for name, array in arrays.items() if not name.startswith("images.")},
    }


def _share(difference: float, largest: float) -> float:
    """Return a relative difference; any is infinite if the tensor is always zero."""
    return difference / largest if largest > 0 else (0.0 if difference == 0 else math.inf)
