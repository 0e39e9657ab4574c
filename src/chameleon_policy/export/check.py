"""An exported policy beside the policy itself: the same observations and noise, each with its own
memory, tick by tick.
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
from chameleon_policy.export.programs import observed_tensors
from chameleon_policy.export.runtime import ExportedPolicy
from chameleon_policy.policy import Observation, VisuomotorPolicy
from chameleon_policy.policy.normalizer import Range

TICKS = 20
ACT_EVERY = 4
SEED = 0
BATCHES = (1, 3)
"""Robots that a free batch dimension is tried with; neither is the number that it was traced
with.
"""
TOLERANCE = 1e-4
"""Largest difference, as a share of the largest value that a tensor takes. docs/export.md has what
was measured.
"""


@dataclass(frozen=True, kw_only=True)
class Errors:
    """Largest differences to the policy itself over a rollout, as shares of the largest value of
    the tensor.
    """

    runtime: Runtime
    batch_size: int
    memory: float
    """Of everything that is carried from step to step, but for `working`."""
    working: float
    """Of what the head reads."""
    actions: float

    @property
    def largest(self) -> float:
        """Of all; not a number if one of them is not."""
        found = (self.memory, self.working, self.actions)
        return math.nan if any(map(math.isnan, found)) else max(found)


def check_export(
    directory: Path,
    policy: VisuomotorPolicy,
    runtimes: tuple[Runtime, ...],
    steps: int,
    batch_size: int | None,
) -> tuple[Errors, ...]:
    """Compare what lies in the directory with the policy; ValueError if they differ by more than
    rounding does.
    """
    found = []
    for runtime in runtimes:
        exported = ExportedPolicy(directory, runtime)
        for robots in BATCHES if batch_size is None else (batch_size,):
            errors = roll_both(exported, policy, runtime, steps, robots)
            found.append(errors)
            if not errors.largest <= TOLERANCE:  # written so that NaN fails too
                raise ValueError(
                    f"the {runtime} programs do not do what the policy does: over {TICKS} control steps of {robots} robots "
                    f"they differ by {errors.memory:.1e} in the memory, {errors.working:.1e} in the working state and "
                    f"{errors.actions:.1e} in the actions (allowed: {TOLERANCE:.0e} of the largest value). Nothing was "
                    "written; please report it, with the method and the versions of torch and onnxruntime"
                )
    return tuple(found)


def roll_both(
    exported: ExportedPolicy, policy: VisuomotorPolicy, runtime: Runtime, steps: int, robots: int
) -> Errors:
    """Both through `TICKS` random observations, with a chunk of actions every few."""
    generator = torch.Generator().manual_seed(SEED)
    state, memory = policy.initial_state(robots), exported.initial_state(robots)
    largest: dict[str, float] = {}
    differences: dict[str, float] = {}

    def compare(name: str, theirs: np.ndarray[Any, Any], ours: Tensor) -> None:
        expected = ours.detach().cpu().numpy().astype(np.float64)
        largest[name] = max(largest.get(name, 0.0), float(np.abs(expected).max()))
        # np.maximum keeps NaN, which `max` may lose
        differences[name] = float(
            np.maximum(differences.get(name, 0.0), np.abs(theirs - expected).max())
        )

    for tick in range(TICKS):
        seen = random_observation(policy, robots, generator)
        state = policy.observe(seen, state)
        memory = exported.observe(as_arrays(seen), memory)
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
    return Errors(
        runtime=runtime,
        batch_size=robots,
        memory=float(np.max(carried)),
        working=shares["working"],
        actions=shares["actions"],
    )


def described(errors: tuple[Errors, ...]) -> dict[str, Any]:
    """For `policy.json`."""
    return {
        "ticks": TICKS,
        "act_every": ACT_EVERY,
        "seed": SEED,
        "tolerance": TOLERANCE,
        "errors": [*map(asdict, errors)],
    }


def random_observation(
    policy: VisuomotorPolicy, robots: int, generator: torch.Generator
) -> Observation:
    """Numbers out of the ranges that the policy was trained with, and pictures of noise."""
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
    """An observation as `ExportedPolicy.observe` takes it."""
    arrays = {name: tensor.numpy() for name, tensor in observed_tensors(observation).items()}
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
    """Of a tensor that is always zero, every difference is too much."""
    return difference / largest if largest > 0 else (0.0 if difference == 0 else math.inf)
