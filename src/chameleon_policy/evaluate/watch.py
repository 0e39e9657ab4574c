"""Closed-loop evaluation on training seeds, while a policy is being trained.

A loss can be small while the policy reads its own jitter as evidence. If DSR is at chance even
here, it does not remember.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow.parquet as pq
from torch import nn

from chameleon_policy.evaluate.evaluation import evaluate
from chameleon_policy.evaluate.loading import spaces_of
from chameleon_policy.json_files import read_json_object
from chameleon_policy.policy import VisuomotorPolicy
from chameleon_policy.recorder import SETTINGS, TABLE, find_recording
from chameleon_policy.suite import SUITES, EnvironmentSettings, Spaces, suite_named
from chameleon_policy.train.loop import Watch

SAMPLING_STEPS = 8
"""Euler steps of a chunk."""


def watch_training_seeds(
    datasets: Sequence[Path], episodes: int, workers: int, policy: VisuomotorPolicy
) -> Watch:
    """Return a function that scores a policy on the first episodes of recordings.

    The environments are those of the recordings. With several recordings the names of the metrics
    end in those of their folders.
    """
    environments = [environment_of(dataset, spaces_of(policy.features)) for dataset in datasets]
    seeds = [_seeds(dataset)[:episodes] for dataset in datasets]
    ambiguous = len({dataset.name for dataset in datasets}) < len(datasets)

    def watch(policy: nn.Module) -> Mapping[str, float]:
        metrics = {}
        for dataset, settings, chosen in zip(datasets, environments, seeds, strict=True):
            evaluation = evaluate(
                policy,  # type: ignore[arg-type]
                settings,
                chosen,
                steps=SAMPLING_STEPS,
                workers=workers,
                training_seeds=True,
            )
            end = f"_{dataset if ambiguous else dataset.name}" if len(datasets) > 1 else ""
            for name, rate in evaluation.summary.rates.items():
                metrics[f"train_{name}{end}"] = rate.value
        return metrics

    return watch


def environment_of(dataset: Path, spaces: Spaces) -> EnvironmentSettings:
    """Return the environment that a dataset was recorded in, for a policy with these spaces."""
    path = find_recording(dataset)
    if path is None:
        raise ValueError(
            f"{dataset} is no recording of {' or '.join(SUITES)} ({SETTINGS} is missing): there is "
            "no environment to watch it in. Leave out --watch-times, or evaluate on --held-out "
            "demonstrations only: --watch-episodes 0"
        )
    suite = suite_named(path.parent.name)
    try:
        return suite.recorded_settings(read_json_object(path), spaces)
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is damaged ({error!r}); record or copy the dataset again"
        ) from error


def _seeds(dataset: Path) -> list[int]:
    path = find_recording(dataset)
    assert path is not None
    table = pq.read_table(path.with_name(TABLE), columns=["seed"], partitioning=None)
    seeds: list[int] = table["seed"].to_pylist()
    return seeds
