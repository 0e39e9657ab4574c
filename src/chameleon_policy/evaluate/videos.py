"""Videos of rollouts: an episode is its seed and its actions, so it is drawn afterwards, and only
if somebody looks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from chameleon_policy.camo.play import Moment, save_clip, watch_actions
from chameleon_policy.evaluate.rollouts import Rollout
from chameleon_policy.evaluate.settings import CamoSettings


def replay(settings: CamoSettings, rollout: Rollout, size: int) -> list[Moment]:
    """Every control step of a rollout in pictures of this size."""
    env = replace(settings, observation="state", kind="policy").make_env()
    try:
        env.reset(seed=rollout.played.seed)
        moments = watch_actions(env, rollout.actions, size)
        assert env.score() == rollout.played.score, (
            "the same seed and actions must give the same episode"
        )
        return moments
    finally:
        env.close()


def save_failures(
    settings: CamoSettings,
    rollouts: Sequence[Rollout],
    folder: Path,
    *,
    size: int = 256,
    progress: Callable[[int], object] = lambda done: None,
) -> list[Path]:
    """One video for every rollout that did not succeed, named by seed and reason."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for rollout in rollouts:
        if rollout.played.score.success:
            continue
        reason = re.sub(r"[^a-z0-9]+", "-", rollout.played.score.reason.lower()).strip("-")
        path = folder / f"{rollout.played.seed}-{reason}.mp4"
        save_clip(replay(settings, rollout, size), path)
        paths.append(path)
        progress(len(paths))
    return paths
