"""Replay buffers of Diffusion Policy as training data: they are read back as written."""

from __future__ import annotations

import pickle
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import zarr

from chameleon_policy.data import Keys, load_episodes, open_episodes
from episode_files import (
    BLOSC_3,
    LENGTHS,
    assert_equal,
    numbers,
    pictures,
    refused,
    truncate,
    write_zarr,
)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("kind", ["uint8", "0 to 255", "0 to 1"])
def test_replay_buffers(version: int, kind: str, tmp_path: Path) -> None:
    images = np.concatenate([pictures("img", index) for index in range(3)])
    images[: LENGTHS[0]] = 0  # a black episode does not say which scale it has
    if kind != "uint8":
        images = images.astype(np.float32) / (255 if kind == "0 to 1" else 1)
    path = write_zarr(tmp_path / "pusht.zarr", version, images=images)
    episodes = open_episodes(path)
    assert (episodes.lengths, episodes.state_size, episodes.action_size, episodes.fps) == (
        LENGTHS,
        5,
        2,
        None,
    )
    assert episodes.object_slots is None and episodes.instructions == ("",) * 3
    for index, episode in enumerate(load_episodes(pickle.loads(pickle.dumps(episodes)))):
        expected = pictures("img", index) * (index > 0)
        assert_equal(
            episode,
            state=numbers("state", index, 5),
            actions=numbers("action", index, 2),
            img=expected,
        )
    slots = open_episodes(path, Keys(views=(), objects="keypoint"))
    assert slots.object_slots == (9, 2)
    np.testing.assert_array_equal(slots.read(2).objects, numbers("keypoint", 2, 9, 2))


@pytest.mark.parametrize("version", [2, 3])
def test_zipped_replay_buffers_and_plain_folders(version: int, tmp_path: Path) -> None:
    path = write_zarr(tmp_path / "buffer", version)
    shutil.make_archive(str(tmp_path / "buffer.zarr"), "zip", path)
    for source in (path, tmp_path / "buffer.zarr.zip"):
        episode = load_episodes(open_episodes(source))[1]
        actions = numbers("action", 1, 2)
        assert_equal(episode, state=numbers("state", 1, 5), actions=actions, img=pictures("img", 1))
    (tmp_path / "half.zarr.zip").write_bytes((tmp_path / "buffer.zarr.zip").read_bytes()[:-300])
    with pytest.raises(ValueError, match=r"half.zarr.zip is damaged"):
        open_episodes(tmp_path / "half.zarr.zip")


def test_pixels_out_of_range(tmp_path: Path) -> None:
    images = np.concatenate([pictures("img", index) for index in range(3)]).astype(np.float32)
    images[: LENGTHS[0]] /= 255
    with pytest.raises(
        ValueError, match=r"data/img, episode 1: expected pixels from 0 to 1, .*got 0 to 255"
    ):
        load_episodes(open_episodes(write_zarr(tmp_path / "mixed.zarr", 3, images=images)))
    with pytest.raises(
        ValueError, match=r"data/img, episode 0: expected pixels from 0 to 255, .*got -"
    ):
        load_episodes(
            open_episodes(write_zarr(tmp_path / "negative.zarr", 3, images=images * 255 - 9))
        )
    images[7, 0, 0, 0] = np.nan
    with pytest.raises(
        ValueError, match=r"data/img, episode 1: a pixel at time step 1 is no finite number"
    ):
        open_episodes(write_zarr(tmp_path / "nan.zarr", 3, images=images)).read(1)


@pytest.mark.parametrize("version", [2, 3, BLOSC_3])
@pytest.mark.parametrize("keep", [0.0, 0.6, 0.99])
def test_truncated_chunks(version: int, keep: float, tmp_path: Path) -> None:
    path = write_zarr(tmp_path / "cut.zarr", version)
    truncate(path / ("data/state/2.0" if version == 2 else "data/state/c/2/0"), keep)
    refused(path, r"cut.zarr, data/state, episode 1: rows 6 to 8 are damaged")
    truncate(path / ("data/state/.zarray" if version == 2 else "data/state/zarr.json"), 0.5)
    refused(path, r"cut.zarr/data/state/\S* is (damaged|not valid JSON)")


@pytest.mark.parametrize(("key", "size"), [("action", 2), ("state", 5)])
def test_not_finite_in_zarr(key: str, size: int, tmp_path: Path) -> None:
    values = np.concatenate([numbers(key, index, size) for index in range(3)]).astype(np.float64)
    values[10, 0] = 1e300  # beyond float32
    path = write_zarr(tmp_path / "bad.zarr", 2, **{key: values})
    refused(path, rf"bad.zarr, data/{key}, episode 2: inf at time step 1, dimension 0")


def test_lengths_that_do_not_agree(tmp_path: Path) -> None:
    def with_ends(*ends: int) -> Path:
        path = write_zarr(tmp_path / "ends.zarr", 3)
        zarr.open_group(path, mode="a")["meta"].create_array(
            "episode_ends", data=np.array(ends), overwrite=True
        )
        return path

    refused(
        with_ends(6, 9, 20),
        r"ends.zarr, data/\w+: expected 20 time steps, where meta/episode_ends .*, got 14",
    )
    refused(with_ends(6, 9), r"expected 9 time steps, .* got 14")
    refused(
        with_ends(6, 6, 14), r"ends.zarr, episode 1, action: expected at least 1 time step, got 0"
    )
    refused(
        with_ends(9, 6, 14), r"ends.zarr, episode 1, action: expected at least 1 time step, got -3"
    )
    path = write_zarr(tmp_path / "short.zarr", 3, state=np.zeros((13, 5)))
    refused(path, r"short.zarr, data/state: expected 14 time steps, .*got 13")


def test_an_empty_dataset(tmp_path: Path) -> None:
    path = write_zarr(tmp_path / "empty.zarr", 2)
    zarr.open_group(path, mode="a")["meta"].create_array(
        "episode_ends", shape=(0,), dtype="i8", overwrite=True
    )
    refused(path, f"{re.escape(str(path))} holds no episodes")
