"""Train a policy and its memoryless twin in seven minutes, score both, write a page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from chameleon_policy.cli.options import typed
from chameleon_policy.experiments.demo import DemoConfig, run_demo
from chameleon_policy.experiments.pipeline import Workspace


def main(
    config: Annotated[DemoConfig, tyro.conf.OmitArgPrefixes] = DemoConfig(),  # noqa: B008
    out: Path = Path("runs/demo"),
) -> None:
    """Record, train a policy and its memoryless twin, score both in closed loop, write a page.

    Args:
        config: Size of the experiment.
        out: Folder for everything that is made; what is there already is kept.
    """
    page = run_demo(config, Workspace(out=out, command=typed(), device="cpu"))
    print(f"Open it in a browser: {page.resolve().as_uri()}")
