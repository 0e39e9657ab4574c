"""The steps of every experiment: record once (`camo.recording.record_once`), train, play.

Each step keeps what is there already, so that the same command goes on after an interruption.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from chameleon_policy.console import Bar
from chameleon_policy.device import Device
from chameleon_policy.evaluate.evaluation import Evaluation, evaluate
from chameleon_policy.evaluate.loading import load_for_evaluation
from chameleon_policy.exit_codes import STOPPED
from chameleon_policy.train.run import AlreadyTrainedError, RunConfig, train


def train_once(
    run: RunConfig, out: Path, console: Console, *, device: Device, workers: int = 2
) -> None:
    """Train, unless the run's budget is spent; SystemExit if a signal asked to stop."""
    try:
        signal = train(run, out, device=device, workers=workers, console=console)
    except AlreadyTrainedError:
        console.print(f"{out} is trained already.", soft_wrap=True)
        return
    if signal is not None:
        console.print(f"Stopped and saved; the same command goes on with {out}.", soft_wrap=True)
        raise SystemExit(STOPPED + signal)


def play(
    policy: Path, task: str, seeds: Sequence[int], bar: Bar, *, device: Device, **options: Any
) -> Evaluation:
    """Load a policy and play one episode of the task for every seed; options are those of
    `evaluate`.
    """
    loaded, settings = load_for_evaluation(policy, task, device)
    with bar(f"{policy.name} plays {task}", len(seeds)) as advance:
        return evaluate(loaded, settings, seeds, progress=advance, **options)
