"""Small datasets in every format, for the tests of their readers."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numcodecs
import numpy as np
import pytest
import zarr

from chameleon_policy.data import (
    EpisodeArrays,
    FileLimits,
    Keys,
    Schema,
    assemble,
    load_episodes,
    open_episodes,
    write_part,
)

LENGTHS = (6, 3, 5)
TEXTS = ("open the drawer", "close it", "open the drawer")
ROBOT = {"robot0_eef_pos": 3, "robot0_eef_quat": 4, "robot0_gripper_qpos": 2}
SIZE = (12, 9)
BLOSC_3 = 4
"""Stands for zarr's format 3 with the codec that is usual in format 2."""


def numbers(key: str, index: int, *shape: int) -> np.ndarray:
    return (
        np.random.default_rng([index, *key.encode()])
        .normal(size=(LENGTHS[index], *shape))
        .astype(np.float32)
    )


def pictures(key: str, index: int, size: tuple[int, int] = SIZE) -> np.ndarray:
    return np.random.default_rng([index, *key.encode()]).integers(
        0, 256, (LENGTHS[index], *size, 3), np.uint8
    )


def smooth_pictures(index: int, size: tuple[int, int]) -> np.ndarray:
    """Return pictures that survive video compression: a ramp, brighter from step to step."""
    rows, columns = np.mgrid[0 : size[0], 0 : size[1]]
    ramp = 40 + 60 * rows / size[0] + 60 * columns / size[1]
    steps = [ramp + 8 * step + 10 * index for step in range(LENGTHS[index])]
    return (
        np.stack([np.stack([frame, frame + 10, frame + 20], axis=-1) for frame in steps])
        .round()
        .astype(np.uint8)
    )


SCHEMA = Schema(
    fps=7.5,
    robot_type="camo",
    views={"third": (64, 96), "wrist": (48, 48)},
    vectors={
        "observation.state": ("x", "y", "grip"),
        "action": ("dx", "dy"),
        "observation.velocity": ("v",),
    },
)


def write_lerobot(parts: Path, out: Path) -> Path:
    for index, text in enumerate(TEXTS):
        vectors = {key: numbers(key, index, len(names)) for key, names in SCHEMA.vectors.items()}
        frames = {view: smooth_pictures(index, size) for view, size in SCHEMA.views.items()}
        write_part(parts, index, SCHEMA, frames=frames, vectors=vectors, instruction=text)
    # The third episode lies in a second file of each kind.
    assemble(
        parts, out, SCHEMA, range(3), limits=FileLimits(video_seconds=10 / 7.5, data_mb=300 / 2**20)
    )
    return out


def write_hdf5(
    path: Path, *, state: dict[str, int] = ROBOT, images: tuple[str, ...] = ("front_image",)
) -> Path:
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["env_args"] = json.dumps(
            {"env_name": "Lift", "env_kwargs": {"control_freq": 20}}
        )
        # Eleven demonstrations would sort as 0, 1, 10, 2, ... by their names.
        for index, number in enumerate((2, 9, 10)):
            demo = data.create_group(f"demo_{number}")
            demo["actions"] = numbers("actions", index, 7).astype(np.float64)
            demo["rewards"] = np.zeros(LENGTHS[index])
            for key, size in state.items():
                demo[f"obs/{key}"] = numbers(key, index, *([size] if size > 1 else []))
            for key in images:
                demo.create_dataset(f"obs/{key}", data=pictures(key, index), compression="gzip")
            demo["obs/object"] = numbers("object", index, 14)
    return path


def write_zarr(
    path: Path, version: int, *, images: np.ndarray | None = None, **arrays: np.ndarray
) -> Path:
    group = zarr.open_group(path, mode="w", zarr_format=min(version, 3))
    data, meta = group.create_group("data"), group.create_group("meta")
    if images is None:
        images = np.concatenate([pictures("img", index) for index in range(3)])
    contents = {
        "action": np.concatenate([numbers("action", index, 2) for index in range(3)]),
        "state": np.concatenate([numbers("state", index, 5) for index in range(3)]),
        "keypoint": np.concatenate([numbers("keypoint", index, 9, 2) for index in range(3)]),
        "img": images,
    }
    options = {
        2: {"compressors": numcodecs.Blosc("lz4", 5)},
        3: {},
        BLOSC_3: {"compressors": zarr.codecs.BloscCodec()},
    }[version]
    for key, values in (contents | arrays).items():
        data.create_array(key, data=values, chunks=(4, *values.shape[1:]), **options)
    meta.create_array("episode_ends", data=np.cumsum(LENGTHS))
    return path


def assert_equal(
    found: EpisodeArrays, *, state: np.ndarray, actions: np.ndarray, **images: np.ndarray
) -> None:
    for came, expected in ((found.state, state), (found.actions, actions)):
        assert came.dtype == np.float32
        np.testing.assert_array_equal(came, expected)
    assert found.length == len(actions)
    assert list(found.images) == list(images)
    for view, expected in images.items():
        assert found.images[view].dtype == np.uint8
        np.testing.assert_array_equal(found.images[view], expected)


def refused(
    path: Path, message: str, keys: Keys | None = None, error: type[Exception] = ValueError
) -> None:
    with pytest.raises(error, match=message):
        load_episodes(open_episodes(path, keys or Keys()))


def truncate(path: Path, keep: float) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: int(keep * len(content))])
