"""Small datasets and runs that the tests of training and evaluation share."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np

from chameleon_policy import Features, ObjectSlots
from chameleon_policy.data import EpisodeArrays

FEATURES = Features(objects=ObjectSlots(count=2, size=4), proprioception=3, action=2, horizon=4)
"""Features of the episodes of `make_episodes`."""


def make_episodes(
    lengths: list[int], *, state: int = 3, action: int = 2, seed: int = 0
) -> list[EpisodeArrays]:
    """Make episodes of noise with two object slots, of these lengths."""
    rng = np.random.default_rng(seed)
    return [
        EpisodeArrays(
            state=rng.normal(size=(length, state)).astype(np.float32),
            actions=rng.normal(size=(length, action)).astype(np.float32),
            images={},
            objects=rng.normal(size=(length, 2, 4)).astype(np.float32),
            instruction="",
        )
        for length in lengths
    ]


def write_demonstrations(path: Path, episodes: list[EpisodeArrays]) -> Path:
    """Write episodes to a robomimic file."""
    import h5py

    with h5py.File(path, "w") as file:
        for number, episode in enumerate(episodes):
            demo = file.create_group(f"data/demo_{number}")
            demo["actions"] = episode.actions
            demo["obs/state"] = episode.state
            assert episode.objects is not None
            demo["obs/object"] = episode.objects.reshape(episode.length, -1)
    return path


def chameleon(*arguments: object, launcher: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    """Start `chameleon` in a process of its own."""
    command = [sys.executable, *(launcher or ("-m",)), "chameleon_policy.cli", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def lines(run: Path) -> list[dict[str, float]]:
    """Return the lines of metrics.jsonl that are written so far."""
    path = run / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def losses(run: Path) -> list[tuple[float, ...]]:
    """Return the metrics that must be equal in two equal runs, which excludes timings."""
    names = ("step", "loss", "action", "control_jepa", "gradient_norm", "learning_rate")
    return [tuple(line[name] for name in names) for line in lines(run)]
