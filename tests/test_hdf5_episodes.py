"""robomimic and LIBERO files as training data: they are read back as written."""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path

import h5py
import numpy as np
import pytest

from chameleon_policy.data import Keys, load_episodes, open_episodes
from episode_files import (
    LENGTHS,
    ROBOT,
    assert_equal,
    numbers,
    pictures,
    refused,
    truncate,
    write_hdf5,
)


def robot_state(index: int) -> np.ndarray:
    return np.concatenate([numbers(key, index, size) for key, size in ROBOT.items()], axis=1)


def test_robomimic(tmp_path: Path) -> None:
    episodes = open_episodes(
        write_hdf5(tmp_path / "lift.hdf5", images=("front_image", "hand_image"))
    )
    assert (episodes.state_size, episodes.action_size, episodes.object_slots, episodes.fps) == (
        9,
        7,
        None,
        20,
    )
    assert episodes.lengths == LENGTHS and episodes.instructions == ("",) * 3
    for index, episode in enumerate(load_episodes(pickle.loads(pickle.dumps(episodes)))):
        images = {view: pictures(view, index) for view in ("front_image", "hand_image")}
        assert_equal(
            episode, state=robot_state(index), actions=numbers("actions", index, 7), **images
        )
    without = open_episodes(tmp_path / "lift.hdf5", Keys(views=()))
    np.testing.assert_array_equal(without.read(1).objects, numbers("object", 1, 14)[:, None])
    assert without.object_slots == (1, 14)


@pytest.mark.parametrize(
    "state",
    [{"ee_states": 6, "gripper_states": 2}, {"ee_pos": 3, "ee_ori": 3, "gripper_states": 1}],
)
def test_libero(state: dict[str, int], tmp_path: Path) -> None:
    path = write_hdf5(tmp_path / "task_demo.h5", state=state | {"joint_states": 7})
    with h5py.File(path, "a") as file:
        file["data"].attrs["problem_info"] = json.dumps(
            {"language_instruction": "put the mug away"}
        )
    episodes = open_episodes(path)
    assert episodes.instructions == ("put the mug away",) * 3
    # One number per time step is stored without a second axis.
    expected = [
        numbers(key, 2, *([size] if size > 1 else [])).reshape(LENGTHS[2], size)
        for key, size in state.items()
    ]
    np.testing.assert_array_equal(episodes.read(2).state, np.concatenate(expected, axis=1))


def test_truncated_hdf5(tmp_path: Path) -> None:
    for keep in (0.0, 0.3, 0.95):
        path = write_hdf5(tmp_path / "cut.hdf5")
        truncate(path, keep)
        refused(path, r"cut.hdf5 is damaged or cannot be read")


@pytest.mark.parametrize(
    ("key", "name"), [("actions", "actions"), ("robot0_eef_quat", "obs/robot0_eef_quat")]
)
def test_not_finite_in_hdf5(key: str, name: str, tmp_path: Path) -> None:
    path = write_hdf5(tmp_path / "bad.hdf5")
    with h5py.File(path, "a") as file:
        file[f"data/demo_10/{name}"][4, 2] = np.nan
    refused(path, rf"bad.hdf5, data/demo_10/{name}, episode 2: nan at time step 4, dimension 2")


def test_lengths_that_do_not_agree(tmp_path: Path) -> None:
    path = write_hdf5(tmp_path / "unequal.hdf5")
    with h5py.File(path, "a") as file:
        del file["data/demo_9/obs/front_image"]
        file["data/demo_9/obs/front_image"] = pictures("x", 1)[:2]
    where = "unequal.hdf5, data/demo_9/obs/front_image, episode 1"
    refused(path, rf"{where}: expected 3 time steps, as many as actions has, got 2")
    with h5py.File(path, "a") as file:
        del file["data/demo_9/obs/front_image"]
        file["data/demo_9/obs/front_image"] = pictures("x", 1, (8, 8))
    refused(path, rf"{where}: expected pictures \(12, 9, 3\) uint8, .* got \(8, 8, 3\)")
    with h5py.File(path, "a") as file:
        del file["data/demo_9/obs/front_image"]
    refused(path, r"unequal.hdf5 has no data/demo_9/obs/front_image, which the first episode has")
    with h5py.File(path, "a") as file:
        del file["data/demo_9/actions"]
        file["data/demo_9/actions"] = np.zeros((3, 6))
    refused(
        path,
        r"data/demo_9/actions, episode 1: expected numbers of shape \(3, 7\), .* got \(3, 6\)",
        Keys(views=()),
    )


def test_an_empty_dataset(tmp_path: Path) -> None:
    path = tmp_path / "empty.hdf5"
    with h5py.File(path, "w") as file:
        file.create_group("data")
    refused(path, f"{re.escape(str(path))} holds no episodes")
