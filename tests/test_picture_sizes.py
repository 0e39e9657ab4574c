"""Large pictures are scaled down while they are read; others stay as they are, bit for bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from chameleon_policy import ChameleonPolicy
from chameleon_policy.data import Episodes, load_episodes, open_datasets, open_episodes
from chameleon_policy.data.memory import full_memory, machine_memory
from chameleon_policy.data.resizing import resized
from chameleon_policy.train.normalization import statistics_of
from chameleon_policy.train.store import EpisodeStore, features_of
from command_line import chameleon_here
from episode_files import LENGTHS, write_hdf5, write_zarr
from test_lerobot_episodes import with_image_columns


@pytest.fixture(params=["video", "image", "hdf5", "zarr"])
def episodes(request: pytest.FixtureRequest, lerobot: Path, tmp_path: Path) -> Episodes:
    """Return pictures of 64 x 96 and 48 x 48 pixels as video, or of 12 x 9 in other formats."""
    if request.param == "video":
        return open_episodes(lerobot)
    if request.param == "image":
        return open_episodes(with_image_columns(tmp_path))
    if request.param == "hdf5":
        return open_episodes(write_hdf5(tmp_path / "a.hdf5"))
    return open_episodes(write_zarr(tmp_path / "a.zarr", 3))


def test_larger_pictures_are_scaled_and_others_are_not(episodes: Episodes) -> None:
    longest = max(max(size) for size in episodes.views.values())
    full = load_episodes(episodes)
    assert episodes.resized(longest).views == episodes.views
    for before, after in zip(full, load_episodes(episodes.resized(longest)), strict=True):
        for view, frames in before.images.items():
            np.testing.assert_array_equal(after.images[view], frames)
    third = {96: 32, 12: 4}[longest]
    small = episodes.resized(third)
    sizes = {(64, 96): (21, 32), (48, 48): (32, 32), (12, 9): (4, 3)}
    assert small.views == {view: sizes[size] for view, size in episodes.views.items()}
    assert episodes.views != small.views, "the episodes themselves stay as they are"
    assert small.picture_bytes == sum(
        frames.nbytes for episode in load_episodes(small) for frames in episode.images.values()
    )
    for index, before in enumerate(full):
        after = small.read(index)
        np.testing.assert_array_equal(after.actions, before.actions)
        for view, frames in before.images.items():
            expected = [resized(frame, small.views[view]) for frame in frames]
            np.testing.assert_array_equal(after.images[view], expected)


def test_scaling_averages_over_an_area() -> None:
    rows, columns = np.mgrid[0:480, 0:640].astype(float)
    ramp = np.stack([rows / 480, columns / 640, (rows + columns) / 1120], axis=-1)
    scaled = resized((255 * ramp).astype(np.uint8), (168, 224))
    rows, columns = np.mgrid[0:168, 0:224].astype(float)
    ramp = np.stack([rows / 168, columns / 224, (rows + columns) / 392], axis=-1)
    assert np.abs(scaled - 255 * ramp).max() < 2
    noise = np.random.default_rng(0).integers(0, 256, (400, 400, 3), np.uint8)
    # Unrelated pixels: the mean of hundreds has little spread, any single one would keep its own.
    assert resized(noise, (20, 20)).std() < 8 < noise.std()
    assert resized(noise, (20, 20)).shape == (20, 20, 3)


def test_datasets_that_are_joined_are_scaled_too(lerobot: Path) -> None:
    joined = open_datasets([lerobot, lerobot]).resized(32)
    arrays = load_episodes(joined)
    assert len(arrays) == 6 and arrays[0].images["third"].shape == (LENGTHS[0], 21, 32, 3)
    for view in ("third", "wrist"):
        np.testing.assert_array_equal(arrays[1].images[view], arrays[4].images[view])


def test_pictures_are_not_copied_to_be_joined(lerobot: Path) -> None:
    episodes = open_episodes(lerobot)
    arrays = load_episodes(episodes)
    features, statistics = features_of(episodes, horizon=2), statistics_of(arrays)
    store = EpisodeStore(arrays, features, statistics)
    reversed_store = EpisodeStore(arrays[::-1], features, statistics)
    for view in ("third", "wrist"):
        held = store._observation.images[view].numpy()
        assert np.shares_memory(held, arrays[0].images[view])
        np.testing.assert_array_equal(held, np.concatenate([each.images[view] for each in arrays]))
        copied = reversed_store._observation.images[view].numpy()
        np.testing.assert_array_equal(
            copied, np.concatenate([each.images[view] for each in arrays[::-1]])
        )


def test_a_dataset_that_exceeds_the_memory(lerobot: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert 2**28 < machine_memory() < 2**50
    episodes = open_episodes(lerobot)
    monkeypatch.setattr(
        "chameleon_policy.data.memory.machine_memory", lambda: episodes.picture_bytes - 1
    )
    with pytest.raises(
        ValueError,
        match=r"need 0.4 MB of memory, and this machine has 0.4 MB; give a smaller --size",
    ):
        load_episodes(episodes)
    assert len(load_episodes(episodes.resized(80))) == 3


@pytest.mark.parametrize(
    "error",
    [MemoryError("Unable to allocate"), RuntimeError("can't allocate memory: you tried to")],
)
def test_a_full_memory_says_what_to_turn(error: Exception) -> None:
    message = "the memory of this machine is full; give a smaller --size"
    with pytest.raises(MemoryError, match=message), full_memory("--size"):
        raise error
    with pytest.raises(RuntimeError, match="another"), full_memory("--size"):
        raise RuntimeError("another")


def test_training_with_a_size(lerobot: Path, tmp_path: Path) -> None:
    options = ("--preset", "nano", "--steps", 1, "--batch", 1, "--horizon", 2, "--device", "cpu")
    out = tmp_path / "run"
    result = chameleon_here("train", lerobot, "--out", out, *options, "--size", 48)
    assert result.returncode == 0, result.stderr
    assert "Pictures of third are scaled from 64 x 96 to 32 x 48 (--size 48)." in result.stderr
    assert "of wrist" not in result.stderr and "0.2 MB of pictures are read into" in result.stderr
    policy = ChameleonPolicy.from_pretrained(out / "policy")
    assert {view.name: (view.height, view.width) for view in policy.features.views} == {
        "third": (32, 48),
        "wrist": (48, 48),
    }
    refused = chameleon_here(
        "train", lerobot, "--out", tmp_path / "b", "--start-from", out, "--steps", 1, "--batch", 1
    )
    assert refused.returncode == 2
    assert (
        "third 32 x 48, wrist 48 x 48 in" in refused.stderr and "give --size 48" in refused.stderr
    )
    changed = chameleon_here("train", lerobot, "--out", out, *options, "--size", 40)
    assert changed.returncode == 2 and "give the same --size" in changed.stderr
    wrong = chameleon_here("train", lerobot, "--out", out, *options, "--size", 3)
    assert wrong.returncode == 2 and "--size must be at least 16" in wrong.stderr
