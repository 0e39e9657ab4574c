"""Policies by the names that the command line gives them, each with an environment that fits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from chameleon_policy.device import Device, find_device
from chameleon_policy.evaluate.oracle import OraclePolicy
from chameleon_policy.evaluate.rollouts import Policy
from chameleon_policy.json_files import read_json_object
from chameleon_policy.policy import Features, VisuomotorPolicy
from chameleon_policy.policy.config import from_json
from chameleon_policy.policy.places import CONFIG
from chameleon_policy.policy.saving import describe
from chameleon_policy.suite import EnvironmentSettings, ExpertKind, Spaces, find_task
from chameleon_policy.train.checkpoint import RUN_SETTINGS, load_trained, policy_folder
from chameleon_policy.train.metrics import METRICS, read_metrics

EXPERTS: tuple[ExpertKind, ...] = ("oracle", "guess")


def training_of(run: Path | str) -> dict[str, Any] | None:
    """Return the training settings and last metrics of a run; None if the folder is no run."""
    path = Path(run) / RUN_SETTINGS
    if not path.is_file():
        return None
    settings = read_json_object(path, f"copy {run} again, or load {run}/policy")
    lines = read_metrics(Path(run) / METRICS)
    trained = [line for line in lines if "loss" in line]
    return {
        **{name: settings.get(name) for name in ("method", "training", "data", "git_revision")},
        "last": trained[-1:],
    }


def sampling_steps_of(policy: Policy) -> int | None:
    """Return a policy's own number of sampling steps per chunk; None for an expert."""
    return policy.config.sampling_steps if isinstance(policy, VisuomotorPolicy) else None


def spaces_of(features: Features) -> Spaces:
    """Return the sizes of a policy's observations and actions."""
    return Spaces(
        proprioception=features.proprioception,
        action=features.action,
        views={view.name: (view.height, view.width) for view in features.views},
        objects=None
        if features.objects is None
        else (features.objects.count, features.objects.size),
    )


def check_executed(run: Path | str, executed: int | None) -> None:
    """Raise a ValueError if a policy's chunks have fewer actions; only its config.json is read."""
    if executed is None or str(run) in EXPERTS:
        return
    directory, description = describe(policy_folder(run))
    features = from_json(Features, description["features"], f"{directory / CONFIG}: features")
    if executed > features.horizon:
        raise ValueError(
            f"--executed must be at most {features.horizon}, the actions of a chunk, got {executed}"
        )


def load_for_evaluation(
    run: Path | str, task: str, device: Device = "auto", **options: Any
) -> tuple[Policy, EnvironmentSettings]:
    """Load a run's policy (or a saved policy, or an expert) and the environment that fits it.

    `options` are settings of that environment.
    """
    suite, task = find_task(task)
    for kind in EXPERTS:
        if str(run) == kind:
            settings = suite.expert_settings(task, kind, **options)
            return OraclePolicy.of(settings), settings
    policy = load_trained(run, find_device(device))
    return policy, suite.settings(task, spaces_of(policy.features), **options)
