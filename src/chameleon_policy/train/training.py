"""A training run from a dataset to a policy: what `chameleon train` does.

The same command started again resumes the run, however it was interrupted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from accelerate import Accelerator
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from chameleon_policy.baselines import load_policy, method_named
from chameleon_policy.console import Terminal
from chameleon_policy.data import EpisodeArrays, Episodes, load_episodes, open_datasets
from chameleon_policy.data.memory import gigabytes
from chameleon_policy.device import Device, find_device
from chameleon_policy.locking import only_process
from chameleon_policy.policy import InstructionEncoder, VisuomotorPolicy, preset
from chameleon_policy.policy.config import to_json
from chameleon_policy.policy.normalizer import Statistics
from chameleon_policy.policy.ssm import SelectiveSSM
from chameleon_policy.provenance import git_revision
from chameleon_policy.train.augmentation import Mirror
from chameleon_policy.train.checkpoint import policy_folder
from chameleon_policy.train.config import RunConfig, TrainingConfig
from chameleon_policy.train.graphs import LENGTH_MULTIPLE
from chameleon_policy.train.held_out import watch_held_out
from chameleon_policy.train.loop import Trainer, Watch
from chameleon_policy.train.metrics import Logger, open_sinks
from chameleon_policy.train.normalization import statistics_of
from chameleon_policy.train.resuming import LOCK, Extension, write_settings
from chameleon_policy.train.sampling import seed_weights
from chameleon_policy.train.store import EpisodeStore, check_fit, features_of
from chameleon_policy.writing import check_folder

WatchMaker = Callable[[VisuomotorPolicy], Watch]
"""Prepares the evaluation of a policy in closed loop; refuses, before the first step, a policy that
does not fit."""


class AlreadyTrainedError(FileExistsError):
    """The budget of the run in this folder is spent."""


def train(
    config: RunConfig,
    out: Path,
    *,
    device: Device = "auto",
    workers: int = 2,
    loggers: tuple[Logger, ...] = (),
    watch: WatchMaker | None = None,
    console: Console | None = None,
) -> int | None:
    """Train, or resume a training.

    Args:
        config: What to train, how, and on which data.
        out: Folder of the run.
        device: Where to compute.
        workers: Threads that load the episodes.
        loggers: Where to write metrics besides metrics.jsonl.
        watch: Evaluation in closed loop during training.
        console: Where to print; standard error by default.

    Returns:
        None when the budget is spent, or the number of the signal that asked to stop.
    """
    if config.training.watch_times and not config.held_out and watch is None:
        raise ValueError("--watch-times: there is nothing to evaluate; give --held-out, or a watch")
    console = console or Terminal(stderr=True)
    accelerator = _accelerator(config.training, device)
    first = accelerator.is_main_process
    if out.exists() and not out.is_dir():
        raise FileExistsError(f"{out} is a file; choose another --out")
    refusal = f"another process is training in {out}; wait for it, or choose another --out"
    episodes = _open(config, config.data)
    _check_augmentation(config.training, episodes)
    if first:
        check_folder(out, "--out")
    with only_process(out / LOCK, refusal) if first else nullcontext():
        trainer, settings = _build(config, episodes, out, accelerator, workers, watch, console)
        # whatever can be refused has been: from here on the folder belongs to this run
        extension = write_settings(out, settings) if first else None
        _resume(trainer, extension, console)
        with _says_what_is_safe(trainer):
            sinks = open_sinks(out, loggers, settings, trainer.progress) if first else []
            try:
                stopped_by = trainer.train(sinks, console)
            finally:
                for sink in sinks:
                    sink.close()
        if first and stopped_by is None:
            _report_plain_training(config.training, trainer.progress.step, console)
        return stopped_by


@contextmanager
def _says_what_is_safe(trainer: Trainer) -> Iterator[None]:
    """Add to an OSError, as from a full disk, what is kept and how to go on."""
    try:
        yield
    except OSError as error:
        raise OSError(
            f"{error}; checkpoints and policy of earlier steps in {trainer.run} are whole. Correct "
            "that, and the same command goes on"
        ) from error


def _resume(trainer: Trainer, extension: Extension | None, console: Console) -> None:
    """Restore the newest checkpoint, or raise AlreadyTrainedError if the budget is spent."""
    first, out = trainer.accelerator.is_main_process, trainer.run
    progress = trainer.restore()
    if trainer.share_of_budget >= 1:
        if first:
            trainer.export()  # a kill may have come between the last checkpoint and the policy
        raise AlreadyTrainedError(
            f"{out} is trained: its budget is spent. Evaluate it with `chameleon eval {out}`, "
            "or choose another --out"
        )
    if progress.step and first:
        console.print(f"Going on with {out} at step {progress.step}.", highlight=False)
    if progress.step and extension is not None:
        console.print(_what_grows(trainer, extension), highlight=False, soft_wrap=True)


def _what_grows(trainer: Trainer, extension: Extension) -> str:
    """Say what a larger budget does to the learning rate, which was to be zero at the old end."""
    step, share = trainer.progress.step, trainer.share_of_budget
    before, now = (
        trainer.config.rate(step, part)
        for part in (share * extension.now / extension.before, share)
    )
    return (
        f"The budget grows from {extension.before:g} to {extension.now:g} {extension.kind}: the "
        f"learning rate, {before:.3g} here before, is {now:.3g} again and falls to zero at the new "
        "end. A run with this budget from the beginning would have taken other steps."
    )


def _accelerator(training: TrainingConfig, device: Device) -> Accelerator:
    on_cpu = find_device(device) == "cpu"
    # batches have few shapes, so that it is worth measuring which algorithm is fastest
    torch.backends.cudnn.benchmark = not on_cpu
    bf16 = training.precision == "bf16" or (training.precision == "auto" and not on_cpu)
    return Accelerator(cpu=on_cpu, mixed_precision="bf16" if bf16 else "no")


def _open(config: RunConfig, paths: tuple[Path, ...]) -> Episodes:
    """Open datasets at the run's size of pictures, with the answer shown if it asks for it."""
    episodes = open_datasets(paths, config.keys)
    if config.tell_answer:
        episodes = _camo_variants().AnswerShownEpisodes(episodes)
    return episodes.resized(config.size)


def _mirror(training: TrainingConfig) -> Mirror | None:
    if not training.mirror:
        return None
    signs = _camo_variants().SIGNS
    return Mirror(state=signs, action=signs)


def _camo_variants() -> ModuleType:
    """Import the variants of Camo's recordings; other data need none of its packages."""
    try:
        from chameleon_policy.camo import dataset_variants
    except ModuleNotFoundError as error:
        raise ImportError(
            "--mirror and --tell-answer, which are for recordings of Camo, need: pip install "
            "'chameleon-policy[camo]'"
        ) from error
    return dataset_variants


def _check_augmentation(training: TrainingConfig, episodes: Episodes) -> None:
    """Raise a ValueError if the episodes lack what their augmentation needs."""
    if training.mirror:
        _camo_variants().check_mirror(episodes)
    if (training.tint or training.warp) and not episodes.views:
        raise ValueError(
            f"--tint and --warp change pictures, and {episodes.source} has none; set both to 0"
        )
    decisions = (episodes.decisions(index)[0] for index in range(len(episodes)))
    if training.annotated_decisions and not any(decisions):
        raise ValueError(
            f"--annotated-decisions: {episodes.source} does not say where its decisions are "
            "(recordings of Camo do); leave it out, so that the actions tell"
        )


def _build(
    config: RunConfig,
    episodes: Episodes,
    out: Path,
    accelerator: Accelerator,
    workers: int,
    watch: WatchMaker | None,
    console: Console,
) -> tuple[Trainer, dict[str, Any]]:
    """Load the data and build the policy; return its trainer, and the settings of the run."""
    first, training, device = accelerator.is_main_process, config.training, accelerator.device
    encoder = InstructionEncoder(config.language, device) if config.language else None
    mirror = _mirror(training)
    arrays = _load(episodes, workers, console, show=first)
    policy = build_policy(config, episodes, arrays, encoder, mirror).to(device)
    if first:
        _report_constants(policy.statistics, console)
    policy.provenance = {
        "seed": training.seed,
        "git_revision": git_revision(),
        "start_from": config.start_from,
    }

    def store_of(arrays: Sequence[EpisodeArrays]) -> EpisodeStore:
        return EpisodeStore(
            arrays,
            policy.features,
            policy.statistics,
            device=device,
            encoder=encoder,
            multiple=LENGTH_MULTIPLE if training.uses_graphs and device.type == "cuda" else 1,
            annotated_decisions=training.annotated_decisions,
        )

    store = store_of(arrays)
    if training.varies_pace and not any(store.waits):
        raise ValueError(
            "--uneven-pace and --longer-retention change how long a robot waits before it first "
            f"sets off, and no episode of {episodes.source} begins with a robot that waits; leave "
            "them out, or set both to 0 with a recipe"
        )
    watches = [watch(policy)] if watch is not None else []
    if config.held_out and first:
        held_out = _open(config, config.held_out)
        check_fit(held_out, policy.features, "this training")
        held_out_store = store_of(_load(held_out, workers, console, show=True))
        watches.append(
            watch_held_out(store, held_out_store, accelerator.autocast, training.emphasis)
        )
    settings = _settings(config, policy, episodes)
    trainer = Trainer(policy, store, training, out, accelerator, mirror=mirror, watches=watches)
    return trainer, settings


def _load(episodes: Episodes, workers: int, console: Console, *, show: bool) -> list[EpisodeArrays]:
    if show:
        _announce_pictures(episodes, console)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not show, transient=True) as bar:
        line = bar.add_task("loading episodes", total=len(episodes))
        return load_episodes(
            episodes, workers=workers, progress=lambda done: bar.update(line, completed=done)
        )


def _announce_pictures(episodes: Episodes, console: Console) -> None:
    """Print how pictures are scaled, and how much memory they will need."""
    for view, (height, width) in episodes.views.items():
        recorded = episodes.layout.views[view]
        if recorded != (height, width):
            console.print(
                f"Pictures of {view} are scaled from {recorded[0]} x {recorded[1]} to {height} x "
                f"{width} (--size {max(height, width)}).",
                highlight=False,
                soft_wrap=True,
            )
    if episodes.views:
        console.print(
            f"{gigabytes(episodes.picture_bytes)} of pictures are read into memory.",
            highlight=False,
            soft_wrap=True,
        )


def build_policy(
    config: RunConfig,
    episodes: Episodes,
    arrays: list[EpisodeArrays],
    encoder: InstructionEncoder | None = None,
    mirror: Mirror | None = None,
) -> VisuomotorPolicy:
    """Build the policy to train: a new one, or a copy of a saved one that fits the data."""
    seed_weights(config.training.seed)
    if config.start_from is not None:
        policy = load_policy(policy_folder(config.start_from))
        check_fit(episodes, policy.features, config.start_from)
        if policy.features.language != (encoder.feature if encoder else None):
            raise ValueError(
                f"{config.start_from} was trained with the language {policy.features.language}; "
                "give the same --language"
            )
        trained = type(policy).for_control(
            replace(policy.config, objective=config.objective), policy.features, policy.statistics
        )
        trained.load_state_dict(policy.state_dict())
        trained.add_training_branch()
        return trained
    architecture = replace(preset(config.preset), objective=config.objective)
    if config.half_life_limit is not None:
        architecture = replace(architecture, fast=architecture.fast.limited(config.half_life_limit))
    features = features_of(episodes, config.horizon, encoder)
    policy = method_named(config.method)(architecture, features, statistics_of(arrays, mirror))
    if config.half_life_limit is not None and not any(
        isinstance(module, SelectiveSSM) for module in policy.modules()
    ):
        raise ValueError(
            f"{config.method} has no state-space layer to limit; leave out --half-life-limit"
        )
    return policy


def _settings(config: RunConfig, policy: VisuomotorPolicy, episodes: Episodes) -> dict[str, Any]:
    """Return the settings of a run in JSON's types: configuration, data and their statistics."""
    settings = {
        "method": policy.method,
        "policy": to_json(policy.config),
        "features": to_json(policy.features),
        "statistics": to_json(policy.statistics),
        "training": asdict(config.training),
        "start_from": config.start_from,
        "held_out": [str(path) for path in config.held_out],
        "tell_answer": config.tell_answer,
        "data": {
            "path": " ".join(map(str, config.data)),
            "episodes": len(episodes),
            "frames": sum(episodes.lengths),
        },
        "git_revision": git_revision(),
    }
    plain: dict[str, Any] = json.loads(json.dumps(settings))
    return plain


def _report_constants(statistics: Statistics, console: Console) -> None:
    """Say which numbers of the data never change."""
    ranges = {"proprioception": statistics.proprioception, "action": statistics.action}
    constant = {name: each.constant for name, each in ranges.items() if each and each.constant}
    if constant:
        found = "; ".join(f"{name} {', '.join(map(str, each))}" for name, each in constant.items())
        console.print(
            f"Numbers that never change in these data keep their units: {found} (counted from 0).",
            highlight=False,
            soft_wrap=True,
        )


def _report_plain_training(config: TrainingConfig, steps: int, console: Console) -> None:
    """Say so if a training was too short for the augmentation of its recipe."""
    if steps <= config.plain_steps and (config.varies_pace or config.varies_appearance):
        console.print(
            f"All {steps} steps were plain (--plain-steps {config.plain_steps}): no episode was "
            "shown at another pace, mirrored, tinted or warped. Train longer, or lower "
            "--plain-steps.",
            highlight=False,
            soft_wrap=True,
        )
