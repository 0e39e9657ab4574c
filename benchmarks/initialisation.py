"""Measure what the initialisation of the memory is worth on delayed recall.

    python -m benchmarks.initialisation [--device cuda] [--workers 8]

One choice is undone at a time, with several seeds. For every variant and seed the result has the
first step at which held-out accuracy reached 97 %.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import tyro
from rich.console import Console
from rich.table import Table
from torch import nn

from benchmarks import delayed_recall, with_arguments
from chameleon_policy import ChameleonPolicy
from chameleon_policy.policy.ssm import SelectiveSSM
from chameleon_policy.provenance import write_result

COMMAND = "python -m benchmarks.initialisation"
SOLVED = 0.97


def _ssm_layers(policy: ChameleonPolicy) -> list[SelectiveSSM]:
    return [module for module in policy.modules() if isinstance(module, SelectiveSSM)]


@torch.no_grad()
def _mamba_time_constants(policy: ChameleonPolicy) -> None:
    """Draw Delta log-uniformly from [0.001, 0.1] and A uniformly from [1, 16], as Mamba2 does."""
    for layer in _ssm_layers(policy):
        rates = torch.exp(torch.empty(layer.heads).uniform_(math.log(0.001), math.log(0.1)))
        layer.rate_bias.copy_(rates + torch.log(-torch.expm1(-rates)))
        layer.log_decay.copy_(torch.empty(layer.heads).uniform_(1, 16).log())
        rows = layer.in_projection.weight[-layer.heads :]
        rows.uniform_(-1 / math.sqrt(rows.shape[1]), 1 / math.sqrt(rows.shape[1]))


@torch.no_grad()
def _no_selectivity(policy: ChameleonPolicy) -> None:
    """Keep the half-lives, but make Delta independent of the input."""
    for layer in _ssm_layers(policy):
        half_lives = layer.half_lives
        layer.in_projection.weight[-layer.heads :].zero_()
        decay_exponent = math.log(2) / half_lives
        layer.log_decay.copy_(torch.log(decay_exponent / nn.functional.softplus(layer.rate_bias)))


@torch.no_grad()
def _pytorch_linear_layers(policy: ChameleonPolicy) -> None:
    """Reset every linear layer to PyTorch's defaults, except for the rows of Delta."""
    rates = {
        layer: layer.in_projection.weight[-layer.heads :].clone() for layer in _ssm_layers(policy)
    }
    for module in policy.modules():
        if isinstance(module, nn.Linear):
            module.reset_parameters()
    for layer, rows in rates.items():
        layer.in_projection.weight[-layer.heads :] = rows


@torch.no_grad()
def _faint_slots(policy: ChameleonPolicy) -> None:
    """Scale slot embeddings to a standard deviation of 0.02, as is usual in transformers."""
    policy.event_tokens.object_slots.mul_(0.02)


VARIANTS: dict[str, Callable[[ChameleonPolicy], None] | None] = {
    "ours": None,
    "Mamba2's time constants": _mamba_time_constants,
    "Delta independent of the input": _no_selectivity,
    "PyTorch's linear layers": _pytorch_linear_layers,
    "slot embeddings of 0.02": _faint_slots,
}


def run(variant: str, seed: int, steps: int, device: str) -> int | None:
    """Return the first step at which held-out accuracy reached 97 %, or None."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    policy = ChameleonPolicy(delayed_recall.config(), delayed_recall.FEATURES)
    change = VARIANTS[variant]
    if change is not None:
        change(policy)
    for progress in delayed_recall.train(policy.to(device), steps=steps, seed=seed):
        if progress.accuracy >= SOLVED:
            return progress.step
    return None


def main(
    steps: int = 300, seeds: int = 6, device: str = "cpu", workers: int = 2, out: Path | None = None
) -> None:
    """Train every variant from every seed.

    Args:
        steps: Training steps after which a run counts as not learned.
        seeds: Seeds per variant.
        device: Where to train.
        workers: Trainings side by side.
        out: File to write; runs/initialisation.json by default.
    """
    console = Console()
    jobs = [(variant, seed) for seed in range(seeds) for variant in VARIANTS]
    result: dict[str, Any] = {variant: {} for variant in VARIANTS}
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        futures = {job: pool.submit(run, *job, steps, device) for job in jobs}
        for (variant, seed), future in futures.items():
            result[variant][str(seed)] = future.result()
            console.print(
                f"{variant}, seed {seed}: solved at step {future.result()}", highlight=False
            )
    table = Table(
        title=f"Delayed recall over {delayed_recall.BLANK} blank steps, {steps} training steps"
    )
    for column in ("initialisation", "seeds that learned it", "at step"):
        table.add_column(column)
    for variant, solved in result.items():
        learned = sorted(step for step in solved.values() if step is not None)
        table.add_row(variant, f"{len(learned)} of {seeds}", ", ".join(map(str, learned)) or "-")
    console.print(table)
    write_result(
        out or Path("runs/initialisation.json"),
        {"steps": steps, "blank": delayed_recall.BLANK, "first_step_at_97_percent": result},
        command=with_arguments(COMMAND),
        seeds=range(seeds),
    )


if __name__ == "__main__":
    tyro.cli(main, prog=COMMAND)
