"""Closed-loop scores on training seeds, taken while a policy is being trained.

A loss can be small while the policy reads its own jitter as evidence. If DSR is at chance even here, it does not remember.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow.parquet as pq
from torch import nn

from chameleon_policy.camo.recording import TABLE
from chameleon_policy.evaluate.camo import evaluate
from chameleon_policy.evaluate.settings import observation_of, settings_of_recording
from chameleon_policy.policy import ChameleonPolicy
from chameleon_policy.train.loop import Watch

SAMPLING_STEPS = 8
"""Euler steps of a chunk: enough to watch."""


def watch_training_seeds(dataset: Path, episodes: int, workers: int, policy: ChameleonPolicy) -> Watch:
    """Scores a policy on the first episodes that a recording was made from, in the environment it was made in."""
    settings = settings_of_recording(dataset)
    observation_of(policy.features, settings.task)  # better refused now than at the first look
    seeds = pq.read_table(dataset / TABLE, columns=["seed"], partitioning=None)["seed"].to_pylist()[:episodes]

    def watch(policy: nn.Module) -> Mapping[str, float]:
        evaluation = evaluate(
            policy,  # type: ignore[arg-type]
            settings,
            seeds,
            steps=SAMPLING_STEPS,
            workers=workers,
            training_seeds=True,
        )
        summary = evaluation.summary
        return {"train_msr": summary.msr.value, "train_dsr": summary.dsr.value, "train_sr": summary.sr.value}

    return watch
