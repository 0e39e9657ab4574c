"""From what people type after `chameleon eval` to a policy and the environment for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from chameleon_policy.device import Device, check_device
from chameleon_policy.evaluate.oracle import OraclePolicy
from chameleon_policy.evaluate.rollouts import Policy
from chameleon_policy.evaluate.settings import CamoSettings, observation_of
from chameleon_policy.policy import VisuomotorPolicy
from chameleon_policy.train.checkpoint import RUN_SETTINGS, load_trained
from chameleon_policy.train.metrics import METRICS, read_metrics

EXPERTS = ("oracle", "guess")


def training_of(run: Path | str) -> dict[str, Any] | None:
    """What a run says of its training; None for what is no run."""
    path = Path(run) / RUN_SETTINGS
    if not path.is_file():
        return None
    settings, lines = json.loads(path.read_text()), read_metrics(Path(run) / METRICS)
    trained = [line for line in lines if "loss" in line]
    return {
        **{name: settings.get(name) for name in ("method", "training", "data", "git_revision")},
        "last": trained[-1:],
    }


def sampling_steps_of(policy: Policy) -> int | None:
    """Sampling steps of a chunk, unless it is told otherwise; None where there are none (an
    expert).
    """
    return policy.config.sampling_steps if isinstance(policy, VisuomotorPolicy) else None


def load_for_evaluation(
    run: Path | str, task: str, device: Device = "auto", **dials: Any
) -> tuple[Policy, CamoSettings]:
    """The policy of a run (or a saved policy, or an expert) and the environment that shows what it
    expects to see.
    """
    if str(run) in EXPERTS:
        return OraclePolicy(), CamoSettings(task=task, observation="state", kind=str(run), **dials)  # type: ignore[arg-type]
    check_device(device)
    where = device if device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    policy = load_trained(run, where)
    return policy, CamoSettings(task=task, **observation_of(policy.features, task), **dials)
