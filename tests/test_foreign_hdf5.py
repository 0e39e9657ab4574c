"""HDF5 files of strangers: they cannot read other files, and absurd contents are named."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pytest

from chameleon_policy.data import Keys, load_episodes, open_episodes
from episode_files import refused, write_hdf5


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_hdf5(tmp_path / "lift.hdf5")


@pytest.mark.parametrize(
    "name", ["data", "data/demo_9", "data/demo_2/obs", "data/demo_2/actions", "data/demo_9/actions"]
)
@pytest.mark.parametrize("kind", ["external", "soft"])
def test_links_are_not_followed(name: str, kind: str, path: Path, tmp_path: Path) -> None:
    other = write_hdf5(tmp_path / "other.hdf5")
    with h5py.File(path, "a") as file:
        file.move(name, "elsewhere")
        file[name] = (
            h5py.ExternalLink(str(other), name)
            if kind == "external"
            else h5py.SoftLink("/elsewhere")
        )
    refused(path, rf"lift.hdf5, {name}\S*: \w+ is a link to '.*(other.hdf5|elsewhere)'")


def test_numbers_in_other_files_are_not_read(path: Path, tmp_path: Path) -> None:
    raw = tmp_path / "secret"
    raw.write_bytes(bytes(6 * 7 * 8))
    with h5py.File(path, "a") as file:
        del file["data/demo_2/actions"]
        file["data/demo_2"].create_dataset(
            "actions", shape=(6, 7), dtype="f8", external=[(str(raw), 0, h5py.h5f.UNLIMITED)]
        )
    refused(path, r"data/demo_2/actions: its numbers lie in another file")
    with h5py.File(path, "a") as file:
        del file["data/demo_2/actions"]
        layout = h5py.VirtualLayout(shape=(6, 7), dtype="f8")
        layout[:] = h5py.VirtualSource(str(tmp_path / "b.hdf5"), "data", shape=(6, 7))
        file["data/demo_2"].create_virtual_dataset("actions", layout)
    refused(path, r"data/demo_2/actions: its numbers lie in another file")


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((10**12, 7), r"data/demo_9/actions need 56,000.0 GB of memory, and this machine has"),
        ((6, 10**12), r"data/demo_9/actions need 48,000.0 GB of memory"),
        ((), r"episode 1, actions: expected at least 1 time step, got 0"),
    ],
)
def test_announced_shapes(shape: tuple[int, ...], message: str, path: Path) -> None:
    with h5py.File(path, "a") as file:
        del file["data/demo_9/actions"]
        file["data/demo_9"].create_dataset(
            "actions", shape=shape, dtype="f8", chunks=(1, 7) if shape else None
        )
    refused(path, message, Keys(views=(), state=("actions",)))


def test_vectors_and_pictures_of_absurd_sizes(path: Path) -> None:
    with h5py.File(path, "a") as file:
        for name, shape in (("actions", (6, 10**12)), ("obs/front_image", (6, 10**5, 9, 3))):
            del file[f"data/demo_2/{name}"]
            file["data/demo_2"].create_dataset(
                name, shape=shape, dtype="u1", chunks=(1, 1, 1, 1)[: len(shape)]
            )
    refused(path, r"lift.hdf5, actions: expected 1 to 65,536 numbers .*got 1,000,000,000,000")
    refused(
        path,
        r"lift.hdf5, front_image: expected 1 to 8,192 pixels along a side .*got 100,000",
        Keys(action="rewards"),
    )


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("env_args", "{", "the attribute 'env_args' of data/ is not valid JSON"),
        ("env_args", "[" * 10**5, "the attribute 'env_args' of data/ is not valid JSON"),
        ("env_args", [1.5, 2.5], "the attribute 'env_args' of data/ is not valid JSON"),
        ("env_args", "[]", "must hold a JSON object, and holds a list"),
        ("env_args", {"env_kwargs": {"control_freq": "fast"}}, "has the control_freq 'fast'"),
        ("env_args", {"env_kwargs": {"control_freq": -1}}, "has the control_freq -1"),
        ("problem_info", {"language_instruction": 3}, "has the language_instruction 3"),
        ("problem_info", {"language_instruction": [3]}, r"has the language_instruction \[3\]"),
    ],
)
def test_attributes(name: str, content: object, message: str, path: Path) -> None:
    with h5py.File(path, "a") as file:
        attributes = file["data"].attrs
        text = json.dumps(content) if isinstance(content, dict) else content
        del attributes["env_args"]
        if len(str(text)) < 10**4:
            attributes[name] = text
        else:  # beyond what an object header holds
            attributes.create(name, text, dtype=h5py.string_dtype())
    refused(path, rf"lift.hdf5.*{message}")


def test_other_kinds_of_contents(path: Path) -> None:
    with h5py.File(path, "a") as file:
        del file["data/demo_9/actions"]
        file["data/demo_9/actions"] = np.array(["a", "b", "c"], dtype=h5py.string_dtype())
    refused(path, r"data/demo_9/actions, episode 1: expected numbers .*, got \(3,\) object")
    with h5py.File(path, "a") as file:
        del file["data/demo_9/actions"]
        file.create_group("data/demo_9/actions")
    refused(path, r"lift.hdf5, data/demo_9/actions: expected numbers, got <HDF5 group")
    with h5py.File(path, "a") as file:
        del file["data"]
        file["data"] = np.zeros(3)
    refused(path, r"lift.hdf5, data: expected a group, got <HDF5 dataset")


def test_numbers_that_outweigh_all_others(path: Path) -> None:
    with h5py.File(path, "a") as file:
        file["data/demo_9/actions"][1, 4] = 3e38
    refused(
        path, r"demo_9/actions, episode 1: 3e\+38 at time step 1, dimension 4; .*at most 1e\+15"
    )
    with h5py.File(path, "a") as file:
        file["data/demo_9/actions"][1, 4] = -1e15
    assert load_episodes(open_episodes(path))[1].actions[1, 4] == np.float32(-1e15)
