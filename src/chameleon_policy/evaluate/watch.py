"""Closed-loop scores on training seeds, taken while a policy is being trained.

A loss can be small while the policy reads its own jitter as evidence. If DSR is at chance even
here, it does not remember.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
from torch import nn

from chameleon_policy.camo.recording import TABLE
from chameleon_policy.evaluate.camo import evaluate
from chameleon_policy.evaluate.settings import observation_of, settings_of_recording
from chameleon_policy.policy import VisuomotorPolicy
from chameleon_policy.train.loop import Watch

SAMPLING_STEPS = 8
"""Euler steps of a chunk: enough to watch."""


def watch_training_seeds(
    datasets: Sequence[Path], episodes: int, workers: int, policy: VisuomotorPolicy
) -> Watch:
    """Scores a policy on the first episodes that recordings were made from, in the environments
    they were made in.

    With several recordings the names of the figures end in those of their folders.
    """
    settings = [settings_of_recording(dataset) for dataset in datasets]
    for each in settings:
        observation_of(policy.features, each.task)  # better refused now than at the first look
    tables = [
        pq.read_table(dataset / TABLE, columns=["seed"], partitioning=None) for dataset in datasets
    ]
    seeds = [table["seed"].to_pylist()[:episodes] for table in tables]

    ambiguous = len({dataset.name for dataset in datasets}) < len(datasets)

    def watch(policy: nn.Module) -> Mapping[str, float]:
        figures = {}
        for dataset, each, chosen in zip(datasets, settings, seeds, strict=True):
            evaluation = evaluate(
                policy,  # type: ignore[arg-type]
                replace(each, **observation_of(policy.features, each.task)),  # type: ignore[arg-type]
                chosen,
                steps=SAMPLING_STEPS,
                workers=workers,
                training_seeds=True,
            )
            end = f"_{dataset if ambiguous else dataset.name}" if len(datasets) > 1 else ""
            for name in ("msr", "dsr", "sr"):
                figures[f"train_{name}{end}"] = getattr(evaluation.summary, name).value
        return figures

    return watch
