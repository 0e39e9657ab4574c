"""Train the published policy from nothing and compare its scores with the published ones."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import tyro

from chameleon_policy.cli.options import UNSET, typed
from chameleon_policy.device import Device
from chameleon_policy.experiments.pipeline import Workspace
from chameleon_policy.experiments.reproduce import Reproduction, reproduce


def main(
    config: Annotated[Reproduction, tyro.conf.OmitArgPrefixes],
    out: Annotated[Path | None, UNSET] = None,
    workers: int = os.cpu_count() or 1,
    device: Device = "auto",
) -> None:
    """Record demonstrations, train one policy by the recipe, score it, and compare.

    Args:
        config: The policy to reproduce and its evaluation.
        out: Folder for everything that is made; what is there already is kept (default:
            runs/reproduce-camo, or runs/reproduce-<tasks>).
        workers: Processes that record and evaluate.
        device: Where to train; auto: on a GPU if there is one.
    """
    folder = out or Path("runs") / f"reproduce-{config.name}"
    workspace = Workspace(out=folder, command=typed(), device=device, workers=workers)
    reproduce(config, workspace)
    print(f"Scores of every episode: {folder}/scores.json. Policy: {folder}/policy")
