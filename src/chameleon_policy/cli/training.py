"""Commands that make policies: params, train."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console

from chameleon_policy.cli.shared import Preset, Where, extra
from chameleon_policy.train.config import TrainingConfig
from chameleon_policy.train.recipes import RecipeName


def params(
    size: tyro.conf.Positional[Preset] = "paper",
    as_json: Annotated[bool, tyro.conf.arg(name="json"), tyro.conf.FlagCreatePairsOff] = False,
) -> None:
    """Print the parameter budget beside the paper's.

    Args:
        size: Preset of the policy.
        as_json: Print the integers as JSON and nothing else.
    """
    from chameleon_policy.policy import ChameleonPolicy, parameter_budget
    from chameleon_policy.policy.presets import budget_features, preset
    from chameleon_policy.report.budget_table import budget_table

    policy = ChameleonPolicy(preset(size), budget_features(), with_control_jepa=False)
    budget = parameter_budget(policy)
    if as_json:
        print(json.dumps(asdict(budget), indent=2))
    else:
        Console().print(budget_table(budget, beside_paper=size == "paper"))


@dataclass(frozen=True)
class PolicyOptions:
    """What `train` builds."""

    method: str | None = None
    """chameleon, or what it is compared with: no-memory, act, lstm ... (docs/baselines.md; default: chameleon)."""
    preset: Preset | None = None
    """Size of the policy (default: small)."""
    horizon: int | None = None
    """Actions in one predicted chunk; half of them are executed before the next one (default: 16)."""
    half_life_limit: float | None = None
    """Most control steps over which the working state may keep half of what it holds; inf: no limit (default: 16)."""
    action_steps: int | None = None
    """Time steps of each episode that carry the action loss, drawn anew each time (default: all)."""
    flow_time_power: float = 1.0
    """Above 1, training favours the noise end of the flow."""
    proprioception_noise: float = 0.1
    """Noise on proprioception in training, in normalised units."""
    control_jepa_weight: float = 0.05
    """alpha of the paper."""
    language: str | None = None
    """Text encoder for the dataset's instructions: distilbert-base-uncased, or minilm offline (default: none)."""
    start_from: str | None = None
    """A saved policy to go on from (folder or hub id); it decides method, preset, horizon and limit."""


@dataclass(frozen=True)
class DataKeys:
    """Which arrays of a dataset to use, where its own convention does not fit."""

    state_keys: tuple[str, ...] | None = None
    """Arrays that make up proprioception, joined."""
    action_key: str | None = None
    view_keys: tuple[str, ...] | None = None
    """Cameras (default: all)."""
    objects_key: str | None = None
    """Object slots, in place of cameras."""


def train(
    data: tyro.conf.Positional[tuple[Path, ...]],
    out: Path,
    training: Annotated[TrainingConfig, tyro.conf.OmitArgPrefixes],
    policy: Annotated[PolicyOptions, tyro.conf.OmitArgPrefixes] = PolicyOptions(),  # noqa: B008
    keys: Annotated[DataKeys, tyro.conf.OmitArgPrefixes] = DataKeys(),  # noqa: B008
    recipe: RecipeName | None = None,
    held_out: tuple[Path, ...] = (),
    tell_answer: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    log: tuple[Literal["tensorboard", "wandb"], ...] = (),
    device: Where = "auto",
    workers: int = 2,
) -> None:
    """Train a policy on demonstrations; the same command goes on with a run that was stopped or killed.

    On several GPUs: accelerate launch -m chameleon_policy.cli train ... with the same options.

    Args:
        data: LeRobot v3 folders, robomimic HDF5 files, or Diffusion Policy zarrs; several are trained on together.
        out: Folder of the run.
        training: How to train; the defaults are the paper's.
        policy: The policy and its objective.
        keys: Arrays of the dataset.
        recipe: Start from the options of a recipe (camo: what Camo is learned with; camo-state: from object slots, on a
            CPU); options beside it count more.
        held_out: Demonstrations that are not trained on: their losses, and how well a linear probe reads from the memory
            what decisions ask for, are written to metrics.jsonl --watch-times times.
        tell_answer: Give the policy the answer, to see what it fails at besides remembering (recordings of Camo).
        log: Where figures go beside metrics.jsonl.
        device: Where to compute (default: a GPU if there is one).
        workers: Threads that read the dataset, and processes for rollouts that watch the training.
    """
    with extra("train"):
        from accelerate import PartialState

        from chameleon_policy.data.episodes import Keys
        from chameleon_policy.policy import ObjectiveConfig
        from chameleon_policy.train.run import RunConfig
        from chameleon_policy.train.run import train as train_policy

    objective = ObjectiveConfig(
        action_steps=policy.action_steps, flow_time_power=policy.flow_time_power,
        proprioception_noise=policy.proprioception_noise, control_jepa_weight=policy.control_jepa_weight,
    )  # fmt: skip
    architecture: dict[str, Any] = {
        "method": policy.method, "preset": policy.preset, "horizon": policy.horizon,
        "half_life_limit": policy.half_life_limit,
    }  # fmt: skip
    given = {name: value for name, value in architecture.items() if value is not None}
    if policy.start_from is not None and given:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        decided = ", ".join(name.replace("_", " ") for name in architecture)
        raise ValueError(f"--start-from decides {decided} of the policy; leave out {options}")
    run = RunConfig(
        data=data, held_out=held_out, tell_answer=tell_answer, objective=objective, language=policy.language,
        start_from=policy.start_from, training=training,
        keys=Keys(state=keys.state_keys, action=keys.action_key, views=keys.view_keys, objects=keys.objects_key),
        **given,
    )  # fmt: skip
    watch = None
    if training.watch_times and training.watch_episodes:
        with extra("camo"):
            from chameleon_policy.evaluate.watch import watch_training_seeds

        watch = partial(watch_training_seeds, data, training.watch_episodes, workers)
    stopped_by = train_policy(run, out, device=device, workers=workers, loggers=log, watch=watch)
    if stopped_by is not None:
        print(f"chameleon: stopped and saved; the same command goes on with {out}", file=sys.stderr)
        sys.exit(128 + stopped_by)
    if PartialState().is_main_process:
        print(f"Trained: {out}/policy. Figures: {out}/metrics.jsonl. Evaluate it: chameleon eval {out} --task ...")
