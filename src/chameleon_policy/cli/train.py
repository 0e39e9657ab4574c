"""Train a policy on demonstrations."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import tyro
from accelerate import PartialState

from chameleon_policy.cli.options import needs
from chameleon_policy.data.memory import full_memory
from chameleon_policy.device import Device, gpu_memory
from chameleon_policy.exit_codes import ALREADY_TRAINED, STOPPED
from chameleon_policy.json_files import read_json_object
from chameleon_policy.recorder import find_recording
from chameleon_policy.suite import full_name
from chameleon_policy.train.config import RunConfig, TrainingConfig
from chameleon_policy.train.metrics import Logger
from chameleon_policy.train.recipes import RECIPES, RecipeName
from chameleon_policy.train.training import AlreadyTrainedError, WatchMaker, train

NEW_POLICY = ("--method", "--preset", "--horizon", "--half-life-limit")
"""Options of a new policy, which --start-from decides."""
BUDGET = ("--steps", "--minutes")
MINUTES = 30.0
"""Budget of a training that is given none."""


def command(arguments: Sequence[str]) -> Callable[..., None]:
    """Return the command with the defaults of the recipe that these arguments name."""

    def main(
        out: Path,
        config: Annotated[RunConfig, tyro.conf.OmitArgPrefixes] = defaults(arguments),  # noqa: B008
        recipe: RecipeName | None = None,
        log: tuple[Logger, ...] = (),
        device: Device = "auto",
        workers: int = 2,
    ) -> None:
        """Train a policy; the same command resumes a run that was stopped or killed.

        On several GPUs: accelerate launch -m chameleon_policy.cli train ..., with the same options.

        Args:
            out: Folder of the run.
            config: What to train, how, and on which data; the defaults are the paper's, or those
                of the recipe.
            recipe: Start from the settings of a recipe; options override it.
                camo is for images of Camo, camo-state for object slots, on a CPU.
            log: Where to write metrics besides metrics.jsonl.
            device: Where to compute; auto: on a GPU if there is one.
            workers: Threads that read the dataset, and processes for rollouts during training.
        """
        if recipe is None and not typed_options(arguments, *BUDGET):
            print(
                f"No budget is given: training for {MINUTES:g} minutes. Choose with --minutes or "
                "--steps; a run can be made longer later.",
                file=sys.stderr,
            )
        run(config, out, log, device, workers)

    return main


def defaults(arguments: Sequence[str]) -> Any:
    """Return a recipe's run whose data are missing; without recipe and budget, that of a default.

    No defaults at all if there is no recipe, but a budget: steps and minutes exclude one another.
    """
    typed = typed_options(arguments, "--recipe", "--start-from", *BUDGET, *NEW_POLICY)
    if "--start-from" in typed and typed.keys() & set(NEW_POLICY):
        options = ", ".join(option for option in NEW_POLICY if option in typed)
        raise ValueError(
            f"--start-from decides {', '.join(NEW_POLICY)} of the policy; leave out {options}"
        )
    recipe = RECIPES.get(typed.get("--recipe"))  # type: ignore[call-overload]
    if recipe is None and typed.keys() & set(BUDGET):
        return tyro.MISSING_NONPROP
    if recipe is None:
        return RunConfig(data=tyro.MISSING_NONPROP, training=TrainingConfig(minutes=MINUTES))
    # any number of steps replaces the minutes; tyro reads the right one
    budget = {"steps": 1} if "--steps" in typed else {}
    return recipe.run(data=tyro.MISSING_NONPROP, training=budget)


def typed_options(arguments: Sequence[str], *options: str) -> dict[str, str]:
    """Return the options that occur in a command line, with their values."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for option in options:
        parser.add_argument(option, dest=option, default=argparse.SUPPRESS, nargs="?")
    return vars(parser.parse_known_args(arguments)[0])


def run(
    config: RunConfig, out: Path, log: tuple[Logger, ...], device: Device, workers: int
) -> None:
    """Train, and exit with the status of how it ended."""
    watch: WatchMaker | None = None
    if config.training.watch_times and config.training.watch_episodes:
        with needs("camo"):
            from chameleon_policy.evaluate.watch import watch_training_seeds
        watch = partial(watch_training_seeds, config.data, config.training.watch_episodes, workers)
    try:
        remedy = "--batch, or a larger --accumulate"
        with gpu_memory(remedy), full_memory(f"--size of pictures, {remedy}"):
            signal = train(config, out, device=device, workers=workers, loggers=log, watch=watch)
    except AlreadyTrainedError as error:
        print(f"chameleon: {error}", file=sys.stderr)
        sys.exit(ALREADY_TRAINED)
    if signal is not None:
        print(f"chameleon: stopped and saved; the same command goes on with {out}", file=sys.stderr)
        sys.exit(STOPPED + signal)
    if PartialState().is_main_process:
        print(f"Trained: {out}/policy. Metrics: {out}/metrics.jsonl.")
        for line in uses(config.data, out):
            print(line)


def uses(data: Sequence[Path], run: Path) -> list[str]:
    """Return what to do with a trained policy: episodes of a suite are played in it."""
    recordings = [path for path in map(find_recording, data) if path is not None]
    tasks = dict.fromkeys(
        full_name(path.parent.name, str(read_json_object(path).get("task"))) for path in recordings
    )
    if not tasks:
        return [f"Serve it to a robot: chameleon serve {run}. Use it in Python: docs/tutorial.md."]
    return [f"Evaluate it: chameleon eval {run} --task {task}" for task in tasks]
