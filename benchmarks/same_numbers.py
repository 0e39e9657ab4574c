"""Compare losses, gradients and actions of two revisions bit by bit on a CPU.

    python -m benchmarks.same_numbers 7f40af8 --out docs/results/same-numbers.json

Each revision runs in its own process from its own checkout: every method at the nano size, on
object slots and on pictures, Chameleon at the small size, and the shipped policy. Policies are
built without a limit of the half-life, which older revisions do not know.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import tyro
from safetensors.torch import load_file, save_file
from torch import Tensor

COMMAND = "python -m benchmarks.same_numbers"
ROOT = Path(__file__).parents[1]
SEED = 0
STEPS = 3


def main(revision: tyro.conf.Positional[str], out: Path = Path("runs/same-numbers.json")) -> None:
    """Run both, compare, write the result, and fail if a bit differs.

    Args:
        revision: Revision to compare the working tree with.
        out: JSON file to write.
    """
    # Imported here, because `compute` runs in this file with the packages of another revision.
    from benchmarks import with_arguments
    from chameleon_policy.provenance import write_result

    before, after = _tensors_of(revision)
    missing = sorted(before.keys() ^ after.keys())
    different = [
        name for name in before.keys() & after.keys() if not _same(before[name], after[name])
    ]
    names = sorted({name.split(":")[0] for name in before})
    numbers = sum(tensor.numel() for tensor in before.values())
    print(f"{len(before)} tensors, {numbers:,} numbers, of: {', '.join(names)}")
    for name in (*missing, *different):
        print(f"not the same: {name}")
    result = {
        "revision": revision,
        "policies": names,
        "tensors": len(before),
        "numbers": numbers,
        "different": different,
        "missing": missing,
    }
    write_result(out, result, command=with_arguments(COMMAND), seeds=[SEED])
    if missing or different:
        raise SystemExit(f"{len(missing) + len(different)} tensors differ from {revision}")
    print(f"All are those of {revision}, to the last bit. Written to {out}")


def _tensors_of(revision: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Compute the tensors of a revision and of the working tree."""
    if _git("rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}").returncode:
        raise SystemExit(f"git knows no revision {revision!r}; `git log --oneline` lists them")
    with tempfile.TemporaryDirectory() as folder:
        other = Path(folder) / "checkout"
        _git("worktree", "add", "--quiet", "--detach", str(other), revision).check_returncode()
        try:
            return (
                _run(other, Path(folder) / "before.safetensors"),
                _run(ROOT, Path(folder) / "after.safetensors"),
            )
        finally:
            _git("worktree", "remove", "--force", str(other)).check_returncode()


def _git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", *arguments], cwd=ROOT, stdout=subprocess.DEVNULL)


def _run(tree: Path, file: Path) -> dict[str, Tensor]:
    """Run this file's `compute` with the code of a checkout."""
    code = f"import runpy; runpy.run_path({__file__!r})['compute']({str(file)!r}, {str(tree)!r})"
    paths = os.pathsep.join([str(tree / "src"), str(tree)])
    subprocess.run(
        [sys.executable, "-c", code], cwd=tree, env={**os.environ, "PYTHONPATH": paths}, check=True
    )
    return load_file(file)


def _same(a: Tensor, b: Tensor) -> bool:
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return False
    return torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))


def compute(file: str, tree: str) -> None:
    """Save all compared tensors by name."""
    import chameleon_policy

    assert Path(chameleon_policy.__file__).is_relative_to(tree), (
        "another checkout's code was imported"
    )
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    save_file({name: tensor.detach().clone().contiguous() for name, tensor in _everything()}, file)


def _everything() -> Iterator[tuple[str, Tensor]]:
    from chameleon_policy import ChameleonPolicy, Features, Language, ObjectSlots, View, preset
    from chameleon_policy.baselines import METHODS

    slots = Features(objects=ObjectSlots(count=3, size=4), proprioception=5, action=2, horizon=4)
    views = tuple(View(name=name, height=64, width=96) for name in ("third", "wrist"))
    pictures = Features(
        views=views,
        proprioception=5,
        action=2,
        horizon=4,
        language=Language(width=6, encoder="none"),
    )
    cases = [
        (method, "nano", name, features)
        for method in METHODS
        for name, features in (("slots", slots), ("pictures", pictures))
    ]
    for method, size, name, features in [*cases, ("chameleon", "small", "pictures", pictures)]:
        torch.manual_seed(SEED)
        policy = METHODS[method](_unlimited(preset(size)), features)
        for what, tensor in (*_training(policy, features), *_control(policy.eval(), features)):
            yield f"{method} {size} {name}: {what}", tensor
    shipped = ChameleonPolicy.from_pretrained("camo-small")
    for what, tensor in _control(shipped, shipped.features):
        yield f"camo-small: {what}", tensor


def _unlimited(config: Any) -> Any:
    if not hasattr(config.fast, "half_life_limit"):
        return config
    return dataclasses.replace(config, fast=dataclasses.replace(config.fast, half_life_limit=None))


def _training(policy: Any, features: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield the loss of two episodes, its parts, every gradient, and the memory afterwards."""
    from benchmarks.inputs import random_observation
    from chameleon_policy import EpisodeBatch

    generator = torch.Generator().manual_seed(SEED)
    time = 20
    batch = EpisodeBatch(
        observation=random_observation(features, (2, time), generator),
        actions=torch.randn(2, time, features.action, generator=generator),
        valid=torch.arange(time) < torch.tensor([[time], [13]]),
    )
    torch.manual_seed(SEED)
    loss = policy.loss(batch)
    loss.total.backward()
    yield "loss", loss.total
    for name, part in loss.parts.items():
        yield f"loss.{name}", part
    for name, parameter in policy.named_parameters():
        if parameter.grad is not None:
            yield f"gradient of {name}", parameter.grad
    if loss.state is not None:
        for name, tensor in loss.state.tensors().items():
            yield f"memory.{name}", tensor


def _control(policy: Any, features: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield the chunks of some control steps, and the memory at the end."""
    from benchmarks.inputs import random_observation

    generator = torch.Generator().manual_seed(SEED + 1)
    state = policy.initial_state(2)
    for step in range(STEPS):
        state = policy.observe(random_observation(features, (2,), generator), state)
        torch.manual_seed(SEED)
        yield f"actions {step}", policy.act(state, steps=4)
    for name, tensor in state.tensors().items():
        yield f"state.{name}", tensor


if __name__ == "__main__":
    tyro.cli(main, prog=COMMAND)
