"""One training run from a dataset to a policy: what `chameleon train` does.

The same command started again goes on where the run stopped, however it stopped.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Self

import torch
import tyro
from accelerate import Accelerator
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from chameleon_policy.baselines import load_policy, method_named
from chameleon_policy.data.episodes import EpisodeArrays, Episodes, Keys, load_episodes
from chameleon_policy.data.joined_episodes import open_datasets
from chameleon_policy.device import Device, check_device
from chameleon_policy.locking import only_process
from chameleon_policy.policy import InstructionEncoder, ObjectiveConfig, VisuomotorPolicy, preset
from chameleon_policy.policy.config import to_json
from chameleon_policy.policy.presets import PresetName
from chameleon_policy.policy.ssm import SelectiveSSM
from chameleon_policy.provenance import git_revision
from chameleon_policy.train.appearance import Mirror
from chameleon_policy.train.checkpoint import SETTINGS, policy_folder
from chameleon_policy.train.config import TrainingConfig
from chameleon_policy.train.graphs import LENGTH_MULTIPLE
from chameleon_policy.train.held_out import watch_held_out
from chameleon_policy.train.loop import Trainer, Watch
from chameleon_policy.train.metrics import Logger, open_sinks
from chameleon_policy.train.order import seed_weights
from chameleon_policy.train.recipes import RECIPES, RecipeName
from chameleon_policy.train.statistics import statistics_of
from chameleon_policy.train.store import EpisodeStore, check_fit, features_of

LOCK = "lock"
NOT_COMPARED = ("git_revision", "training.fused")
"""A run may go on with newer code, and with or without kernels."""
UNLIMITED = " (add --half-life-limit inf)"
"""How a run goes on that began without a limit."""

WatchMaker = Callable[[VisuomotorPolicy], Watch]
"""Prepares the look at a policy in closed loop, or refuses one that does not fit, before the first
step.
"""


class AlreadyTrainedError(FileExistsError):
    """The budget of the run in this folder is spent."""


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """What to train on what."""

    data: tyro.conf.Positional[tuple[Path, ...]]
    """LeRobot v3 folders, robomimic HDF5 files, or Diffusion Policy zarrs; several are trained on
    together."""
    held_out: tuple[Path, ...] = ()
    """Demonstrations that are not trained on: their losses, and how well a linear probe reads from
    the memory what decisions ask for, are written to metrics.jsonl --watch-times times."""
    tell_answer: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Give the policy the answer, to see what it fails at besides remembering (recordings of
    Camo).
    """
    method: str = "chameleon"
    """chameleon, or what it is compared with: no-memory, act, lstm ... (docs/baselines.md)."""
    preset: PresetName = "small"
    """Size of the policy."""
    horizon: int = 16
    """Actions in one predicted chunk; half of them are executed before the next one."""
    half_life_limit: float | None = None
    """Most control steps over which the working state may keep half of what it holds; inf: no
    limit, None: the preset's."""
    objective: Annotated[ObjectiveConfig, tyro.conf.OmitArgPrefixes] = field(
        default_factory=ObjectiveConfig
    )
    language: str | None = None
    """Text encoder for the dataset's instructions: distilbert-base-uncased, or minilm offline;
    None: the policy gets none."""
    start_from: str | None = None
    """A saved policy to go on from (folder or hub id); it decides method, preset, horizon and
    limit."""
    keys: Annotated[Keys, tyro.conf.OmitArgPrefixes] = field(default_factory=Keys)
    training: Annotated[TrainingConfig, tyro.conf.OmitArgPrefixes]

    def __post_init__(self) -> None:
        training = self.training
        if training.emphasis is not None and self.objective.action_steps is None:
            raise ValueError(
                "--decision-emphasis and --rest-emphasis choose among time steps: say how many with --action-steps"
            )
        if self.held_out and not training.watch_times:
            raise ValueError(
                "--held-out is evaluated from time to time: say how often with --watch-times"
            )
        for path in self.held_out:
            if path.resolve() in {data.resolve() for data in self.data}:
                raise ValueError(f"--held-out {path} is trained on; hold out other demonstrations")

    @classmethod
    def by_recipe(
        cls,
        name: RecipeName,
        *,
        data: tuple[Path, ...],
        training: Mapping[str, Any],
        **options: Any,
    ) -> Self:
        """Configure a run by a recipe; what is given counts more."""
        recipe = RECIPES[name]
        own = recipe.trained_with(**training)
        return cls(
            data=data, training=own, horizon=recipe.horizon, objective=recipe.objective, **options
        )


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
    """Train, or go on; returns None when the budget is spent, or the signal that asked to stop."""
    if config.training.watch_times and not config.held_out and watch is None:
        raise ValueError(
            "--watch-times: there is nothing to evaluate; give --held-out, or --watch-episodes above 0"
        )
    console = console or Console(stderr=True)
    accelerator = _accelerator(config.training, device)
    first = accelerator.is_main_process
    if out.exists() and not out.is_dir():
        raise FileExistsError(f"{out} is a file; choose another --out")
    refusal = f"another process is training in {out}; wait for it, or choose another --out"
    episodes = _open(config, config.data)
    mirror = _mirror(config, episodes)
    if (config.training.tint or config.training.warp) and not episodes.views:
        raise ValueError(
            f"--tint and --warp change pictures, and {episodes.source} has none; set both to 0"
        )
    if first:
        out.mkdir(parents=True, exist_ok=True)
    with only_process(out / LOCK, refusal) if first else nullcontext():
        encoder = (
            InstructionEncoder(config.language, accelerator.device) if config.language else None
        )
        arrays = _load(episodes, workers, console, show=first)
        policy = build_policy(config, episodes, arrays, encoder, mirror).to(accelerator.device)
        policy.provenance = {
            "seed": config.training.seed,
            "git_revision": git_revision(),
            "start_from": config.start_from,
        }
        recorded = (
            config.training.graphs
            and config.training.window is None
            and config.training.accumulate == 1
        )
        recorded = recorded and accelerator.device.type == "cuda"
        put_away = partial(
            EpisodeStore,
            features=policy.features,
            statistics=policy.statistics,
            device=accelerator.device,
            encoder=encoder,
            multiple=LENGTH_MULTIPLE if recorded else 1,
        )
        store = put_away(arrays, mirror=mirror)
        if config.training.another_pace and not any(each.steps for each in store.decisions):
            raise ValueError(
                "--uneven-pace and --longer-retention change what comes before a decision, and the data do not say where "
                "one is (recordings of Camo do); leave them out, or set both to 0 beside a recipe"
            )
        looks = [watch(policy)] if watch is not None else []
        if config.held_out and first:
            others = _open(config, config.held_out)
            check_fit(others, policy.features, "this training")
            kept = put_away(_load(others, workers, console, show=True))
            looks.append(
                watch_held_out(store, kept, accelerator.autocast, config.training.emphasis)
            )
        settings = _settings(config, policy, episodes)
        if first:
            # from here on the folder is this run's: what can be refused has been
            _claim(out, settings)
        del arrays
        trainer = Trainer(policy, store, config.training, out, accelerator, watches=looks)
        progress = trainer.restore()
        if trainer.share_of_budget >= 1:
            if first:
                trainer.export()  # a kill may have come between the last checkpoint and the policy
            raise AlreadyTrainedError(
                f"{out} is trained: its budget is spent. Evaluate it with `chameleon eval {out}`, or choose another --out"
            )
        if progress.step and first:
            console.print(f"Going on with {out} at step {progress.step}.", highlight=False)
        sinks = open_sinks(out, loggers, settings, progress) if first else []
        try:
            stopped_by = trainer.train(sinks, console)
        finally:
            for sink in sinks:
                sink.close()
        if first and stopped_by is None:
            _say_if_plain(config.training, trainer.progress.step, console)
        return stopped_by


def _open(config: RunConfig, paths: tuple[Path, ...]) -> Episodes:
    """The datasets; only here and in `_mirror` does training know the benchmark."""
    episodes = open_datasets(paths, config.keys)
    if config.tell_answer:
        from chameleon_policy.camo.dataset_variants import AnswerShownEpisodes

        episodes = AnswerShownEpisodes(episodes)
    return episodes


def _mirror(config: RunConfig, episodes: Episodes) -> Mirror | None:
    if not config.training.mirror:
        return None
    if config.tell_answer:
        raise ValueError(
            "an answer that is told is not told in a mirror: with --tell-answer, give --no-mirror"
        )
    from chameleon_policy.camo.dataset_variants import SIGNS, check_mirror

    check_mirror(episodes)
    return Mirror(state=SIGNS, action=SIGNS)


def build_policy(
    config: RunConfig,
    episodes: Episodes,
    arrays: list[EpisodeArrays],
    encoder: InstructionEncoder | None = None,
    mirror: Mirror | None = None,
) -> VisuomotorPolicy:
    """The policy before its first step: new, or a saved one that the data fit."""
    seed_weights(config.training.seed)
    if config.start_from is not None:
        policy = load_policy(policy_folder(config.start_from))
        check_fit(episodes, policy.features, config.start_from)
        if policy.features.language != (encoder.feature if encoder else None):
            raise ValueError(
                f"{config.start_from} was trained with the language {policy.features.language}; give the same --language"
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


def _accelerator(training: TrainingConfig, device: Device) -> Accelerator:
    check_device(device)
    on_cpu = device == "cpu" or not torch.cuda.is_available()
    # batches have few shapes: worth trying which algorithm is fastest
    torch.backends.cudnn.benchmark = not on_cpu
    bf16 = training.precision == "bf16" or (training.precision == "auto" and not on_cpu)
    return Accelerator(cpu=on_cpu, mixed_precision="bf16" if bf16 else "no")


def _say_if_plain(config: TrainingConfig, steps: int, console: Console) -> None:
    """A short training by a recipe never comes to what the recipe alters."""
    if steps <= config.plain_steps and (config.another_pace or config.another_look):
        console.print(
            f"All {steps} steps were plain (--plain-steps {config.plain_steps}): no episode was shown at another pace, "
            "in the mirror, tinted or warped. Train longer, or give fewer.",
            highlight=False,
            soft_wrap=True,
        )


def _load(episodes: Episodes, workers: int, console: Console, *, show: bool) -> list[EpisodeArrays]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not show, transient=True) as bar:
        line = bar.add_task("loading episodes", total=len(episodes))
        return load_episodes(
            episodes, workers=workers, progress=lambda done: bar.update(line, completed=done)
        )


def _settings(config: RunConfig, policy: VisuomotorPolicy, episodes: Episodes) -> dict[str, Any]:
    """What a run is, in JSON's types: the resolved configuration, the data and the statistics that
    were found in them.
    """
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


def _claim(out: Path, settings: dict[str, Any]) -> None:
    """Write the settings, or make sure that the run that is there has the same ones."""
    path = out / SETTINGS
    if path.exists():
        try:
            then = json.loads(path.read_text())
        except json.JSONDecodeError as error:
            raise ValueError(
                f"{path} is damaged ({error}): choose another --out, or delete the folder {out}"
            ) from error
        changed = [
            f"{key}: {before} then, {now} now{UNLIMITED if key.endswith('half_life_limit') and before is None else ''}"
            for key, before, now in _differences(then, settings)
            if key not in NOT_COMPARED
        ]
        if changed:
            raise FileExistsError(
                f"{out} holds a run with other settings ({'; '.join(changed[:5])}). "
                "Give the same settings to go on with it, or choose another --out"
            )
        return
    unfinished = path.with_suffix(".unfinished")
    if any(child.name not in (LOCK, unfinished.name) for child in out.iterdir()):
        raise FileExistsError(f"{out} holds files of something else; choose another --out")
    unfinished.write_text(json.dumps(settings, indent=2) + "\n")
    unfinished.replace(path)


def _differences(then: Any, now: Any, where: str = "") -> list[tuple[str, Any, Any]]:
    if (then is None and not now) or (now is None and not then):
        return []  # a setting that came later, or is gone, and is off
    if isinstance(then, dict) and isinstance(now, dict):
        keys = list(dict.fromkeys([*then, *now]))
        return [
            each
            for key in keys
            for each in _differences(then.get(key), now.get(key), f"{where}.{key}".lstrip("."))
        ]
    return [] if then == now else [(where, then, now)]
