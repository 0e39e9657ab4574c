"""Checkpoints of a training run, which can be resumed after any interruption.

run/
    run.json                           the settings of the run, compared when it is resumed
    metrics.jsonl                      one line every few steps
    checkpoints/step-<n>.safetensors   weights, averaged weights and optimizers, written atomically
    policy/                            the averaged weights as a policy, for `chameleon eval`
"""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import torch
from torch import Tensor
from torch.optim import Optimizer

from chameleon_policy.baselines import load_policy
from chameleon_policy.json_files import parse_json
from chameleon_policy.policy import VisuomotorPolicy
from chameleon_policy.policy.config import from_json
from chameleon_policy.policy.places import check_inside
from chameleon_policy.policy.saving import serialized
from chameleon_policy.writing import UNFINISHED, named, whole_file

RUN_SETTINGS, POLICY = "run.json", "policy"
FORMAT = "chameleon-training"
MOMENTS = ("step", "exp_avg", "exp_avg_sq", "momentum")
"""Names of the state that AdamW or Muon keeps of every parameter."""


@dataclass(frozen=True)
class Progress:
    """The progress of a run."""

    step: int
    """Optimizer steps taken."""
    seconds: float
    """Time spent training, also before interruptions."""
    watched: int = 0
    """Number of evaluations during training so far."""

    def __post_init__(self) -> None:
        if min(self.step, self.watched) < 0 or not 0 <= self.seconds < math.inf:
            raise ValueError(f"progress: expected numbers that are not negative, got {self}")


def policy_folder(run: Path | str) -> Path | str:
    """Return the folder of a run's policy.

    The folder of a saved policy, or a name on the hub, is returned unchanged.
    """
    if not (Path(run) / RUN_SETTINGS).is_file():
        return run
    if not (Path(run) / POLICY).is_dir():
        raise FileNotFoundError(
            f"{run} has not saved a policy yet; wait for its first checkpoint, or train it further"
        )
    check_inside(Path(run) / POLICY, Path(run))
    return Path(run) / POLICY


def load_trained(run: Path | str, device: torch.device | str = "cpu") -> VisuomotorPolicy:
    """Load the policy of a run, a saved one, or one that comes with the package, in eval mode.

    Weights may be stored in bfloat16 to save space; computations with them are in float32.
    """
    folder = policy_folder(run)
    return load_policy(folder, device=device).float()


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(self, run: Path, keep: int) -> None:
        self.folder, self.keep = run / "checkpoints", keep

    def save(
        self,
        progress: Progress,
        policy: torch.nn.Module,
        ema: Mapping[str, Tensor],
        optimizers: Sequence[Optimizer],
    ) -> Path:
        """Write a checkpoint, then remove the oldest ones."""
        with named(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        tensors = {f"weights/{name}": tensor for name, tensor in policy.state_dict().items()}
        tensors |= {f"ema/{name}": tensor for name, tensor in ema.items()}
        for name, parameter in policy.named_parameters():
            for optimizer in optimizers:
                for moment, value in optimizer.state.get(parameter, {}).items():
                    tensors[f"optimizer/{moment}/{name}"] = value
        metadata = {"format": FORMAT, "progress": json.dumps(vars(progress))}
        # Clones, since tied weights share memory, which the format does not allow.
        content = serialized(
            {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}, metadata
        )
        path = self.folder / f"step-{progress.step:08d}.safetensors"
        with whole_file(path) as unfinished, unfinished.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        # checkpoints of later steps are damaged, since the run was resumed from an earlier one
        newer = [other for other in self._newest_first() if other > path]
        for old in [
            *newer,
            *self._newest_first()[len(newer) + self.keep :],
            *self.folder.glob(f"{UNFINISHED}*"),
        ]:
            old.unlink(missing_ok=True)
        return path

    def restore(
        self, policy: torch.nn.Module, ema: dict[str, Tensor], optimizers: Sequence[Optimizer]
    ) -> Progress | None:
        """Load the newest checkpoint that can be read, and warn about damaged ones.

        Returns its progress, or None if the run has no checkpoint.
        """
        found = self._newest_first()
        for path in found:
            try:
                progress, tensors = _read(path)
            except (safetensors.SafetensorError, ValueError, OSError) as error:
                warnings.warn(
                    f"{path} cannot be read ({error}); going on from the checkpoint before it",
                    stacklevel=2,
                )
                continue
            _apply(path, tensors, policy, ema, optimizers)
            return progress
        if found:
            raise ValueError(
                f"no checkpoint in {self.folder} can be read; train again with another --out"
            )
        return None

    def _newest_first(self) -> list[Path]:
        return sorted(self.folder.glob("step-*.safetensors"), reverse=True)


def _read(path: Path) -> tuple[Progress, dict[str, Tensor]]:
    with safetensors.safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
        if metadata.get("format") != FORMAT:
            raise ValueError("not a training checkpoint")
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        progress = parse_json(metadata.get("progress", ""), "progress")
        return from_json(Progress, progress, "progress"), tensors


def _apply(
    path: Path,
    tensors: dict[str, Tensor],
    policy: torch.nn.Module,
    ema: dict[str, Tensor],
    optimizers: Sequence[Optimizer],
) -> None:
    _check_belongs(path, tensors, policy, ema)
    policy.load_state_dict(dict(_with_prefix("weights/", tensors)), strict=True)
    for name, value in _with_prefix("ema/", tensors):
        ema[name].copy_(value)
    owners = {
        id(parameter): optimizer
        for optimizer in optimizers
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    for name, parameter in policy.named_parameters():
        state: dict[str, Any] = {}
        for moment in MOMENTS:
            kept = tensors.get(f"optimizer/{moment}/{name}")
            if kept is not None:
                state[moment] = kept.to(parameter.device)
        if state:
            owners[id(parameter)].state[parameter] = state


def _check_belongs(
    path: Path, tensors: dict[str, Tensor], policy: torch.nn.Module, ema: dict[str, Tensor]
) -> None:
    """Raise a ValueError unless a checkpoint has the names and shapes of this policy."""
    parameters = dict(policy.named_parameters())
    shapes = {f"weights/{name}": tensor.shape for name, tensor in policy.state_dict().items()}
    needed = set(shapes)
    shapes |= {f"ema/{name}": tensor.shape for name, tensor in ema.items()}
    for name, parameter in parameters.items():
        shapes |= {f"optimizer/{moment}/{name}": parameter.shape for moment in MOMENTS}
        shapes[f"optimizer/step/{name}"] = torch.Size()
    wrong = [name for name, tensor in tensors.items() if shapes.get(name) != tensor.shape] + sorted(
        needed - tensors.keys()
    )
    if wrong:
        raise ValueError(
            f"{path} belongs to another policy ({wrong[0]} and {len(wrong) - 1} others do not "
            "fit); train again with another --out"
        )


def _with_prefix(prefix: str, tensors: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Return the tensors whose names begin with a prefix, by the rest of their names."""
    return (
        (name.removeprefix(prefix), tensor)
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    )
