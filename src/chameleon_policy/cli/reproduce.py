"""Train the published policy from nothing and score it beside the published one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console

from chameleon_policy.cli.options import typed
from chameleon_policy.console import progress_bar
from chameleon_policy.device import Device
from chameleon_policy.experiments.reproduce import Reproduction, reproduce


def main(
    benchmark: tyro.conf.Positional[Literal["camo"]],
    config: Annotated[Reproduction, tyro.conf.OmitArgPrefixes],
    out: Path | None = None,
    workers: int = os.cpu_count() or 1,
    device: Device = "auto",
) -> None:
    """Record demonstrations, train one policy by the recipe, score it, and compare.

    Args:
        benchmark: What to reproduce.
        config: What is made.
        out: Folder for everything that is made; what is there already is kept (default:
            runs/reproduce-camo, or runs/reproduce-<tasks>).
        workers: Processes that record and evaluate.
        device: Where to train (default: a GPU if there is one).
    """
    folder = out or Path("runs") / f"reproduce-{config.name}"
    reproduce(
        config, folder, progress_bar, Console(), command=typed(), device=device, workers=workers
    )
    print(f"Scores of every episode: {folder}/scores.json. Policy: {folder}/policy")
