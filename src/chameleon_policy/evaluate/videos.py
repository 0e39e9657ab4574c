"""Videos of rollouts, drawn afterwards by playing seed and actions of an episode again."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from chameleon_policy.evaluate.rollouts import Rollout
from chameleon_policy.suite import EnvironmentSettings
from chameleon_policy.writing import whole_file


def save_rollout(settings: EnvironmentSettings, rollout: Rollout, path: Path, size: int) -> None:
    """Save a rollout as a video with views of this size."""
    with whole_file(path) as unfinished:
        score = settings.save_video(rollout.played.seed, rollout.actions, unfinished, size)
    assert score == rollout.played.score, "the same seed and actions must give the same episode"


def save_failures(
    settings: EnvironmentSettings,
    rollouts: Sequence[Rollout],
    folder: Path,
    *,
    size: int = 256,
    progress: Callable[[int], object] = lambda done: None,
) -> list[Path]:
    """Save a video of every rollout that did not succeed, named by seed and reason."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for rollout in rollouts:
        if rollout.played.score.success:
            continue
        reason = re.sub(r"[^a-z0-9]+", "-", rollout.played.score.reason.lower()).strip("-")
        path = folder / f"{rollout.played.seed}-{reason}.mp4"
        save_rollout(settings, rollout, path, size)
        paths.append(path)
        progress(len(paths))
    return paths
