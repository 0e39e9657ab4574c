"""Training data in every format: what went in comes out, and what is damaged is refused with its place."""

from __future__ import annotations

import io
import json
import pickle
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import h5py
import numcodecs
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr
from PIL import Image

from chameleon_policy.camo.recording import Recording, record
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
    return np.random.default_rng([index, *key.encode()]).normal(size=(LENGTHS[index], *shape)).astype(np.float32)


def pictures(key: str, index: int, size: tuple[int, int] = SIZE) -> np.ndarray:
    return np.random.default_rng([index, *key.encode()]).integers(0, 256, (LENGTHS[index], *size, 3), np.uint8)


def smooth_pictures(index: int, size: tuple[int, int]) -> np.ndarray:
    """Pictures that survive video compression: a ramp, brighter from step to step."""
    rows, columns = np.mgrid[0 : size[0], 0 : size[1]]
    ramp = 40 + 60 * rows / size[0] + 60 * columns / size[1]
    steps = [ramp + 8 * step + 10 * index for step in range(LENGTHS[index])]
    return np.stack([np.stack([frame, frame + 10, frame + 20], axis=-1) for frame in steps]).round().astype(np.uint8)


def assert_equal(found: EpisodeArrays, *, state: np.ndarray, actions: np.ndarray, **images: np.ndarray) -> None:
    for came, expected in ((found.state, state), (found.actions, actions)):
        assert came.dtype == np.float32
        np.testing.assert_array_equal(came, expected)
    assert found.length == len(actions)
    assert list(found.images) == list(images)
    for view, expected in images.items():
        assert found.images[view].dtype == np.uint8
        np.testing.assert_array_equal(found.images[view], expected)


# ---------------------------------------------------------------------------------------------------------- our own datasets


SCHEMA = Schema(
    fps=7.5,
    robot_type="camo",
    views={"third": (64, 96), "wrist": (48, 48)},
    vectors={"observation.state": ("x", "y", "grip"), "action": ("dx", "dy"), "observation.velocity": ("v",)},
)


@pytest.fixture(scope="module")
def lerobot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    parts, out = tmp_path_factory.mktemp("parts"), tmp_path_factory.mktemp("lerobot")
    for index, text in enumerate(TEXTS):
        vectors = {key: numbers(key, index, len(names)) for key, names in SCHEMA.vectors.items()}
        frames = {view: smooth_pictures(index, size) for view, size in SCHEMA.views.items()}
        write_part(parts, index, SCHEMA, frames=frames, vectors=vectors, instruction=text)
    # The third episode lies in a second file of each kind.
    assemble(parts, out, SCHEMA, range(3), limits=FileLimits(video_seconds=10 / 7.5, data_mb=300 / 2**20))
    return out


def test_a_dataset_that_we_wrote(lerobot: Path) -> None:
    assert len(list(lerobot.glob("data/*/*.parquet"))) > 1
    episodes = open_episodes(lerobot)
    assert (len(episodes), episodes.lengths, episodes.instructions) == (3, LENGTHS, TEXTS)
    assert (episodes.state_size, episodes.action_size, episodes.object_slots, episodes.fps) == (3, 2, None, 7.5)
    assert episodes.views == SCHEMA.views and episodes.source == lerobot
    seen: list[int] = []
    for index, episode in enumerate(load_episodes(episodes, workers=3, progress=seen.append)):
        np.testing.assert_array_equal(episode.state, numbers("observation.state", index, 3))
        np.testing.assert_array_equal(episode.actions, numbers("action", index, 2))
        assert episode.instruction == TEXTS[index] and episode.decision_steps == () and episode.objects is None
        for view, size in SCHEMA.views.items():
            assert episode.images[view].dtype == np.uint8
            difference = np.abs(episode.images[view].astype(int) - smooth_pictures(index, size))
            assert difference.mean(axis=(1, 2, 3)).max() < 2.5
    assert seen == [0, 1, 2, 3]
    with pytest.raises(IndexError, match="episodes 0 to 2, got 3"):
        episodes.read(3)
    with pytest.raises(ValueError, match="workers must be at least 1"):
        load_episodes(episodes, workers=0)


def test_many_threads_read_one_dataset(lerobot: Path) -> None:
    episodes = open_episodes(lerobot, Keys(views=()))
    order = [index for _ in range(60) for index in (0, 2, 1)]
    with ThreadPoolExecutor(8) as pool:
        for index, episode in zip(order, pool.map(episodes.read, order), strict=True):
            np.testing.assert_array_equal(episode.actions, numbers("action", index, 2))


def test_a_choice_of_keys(lerobot: Path) -> None:
    keys = Keys(state=("observation.velocity", "observation.state"), action="observation.state", views=("wrist",))
    episodes = open_episodes(lerobot, keys)
    expected = [numbers("observation.velocity", 1, 1), numbers("observation.state", 1, 3)]
    np.testing.assert_array_equal(episodes.read(1).state, np.concatenate(expected, axis=1))
    np.testing.assert_array_equal(episodes.read(1).actions, expected[1])
    assert list(episodes.read(1).images) == ["wrist"] and (episodes.state_size, episodes.action_size) == (4, 3)
    assert list(open_episodes(lerobot, Keys(views=("observation.images.third",))).views) == ["third"]
    assert open_episodes(lerobot, Keys(views=())).read(0).images == {}
    assert open_episodes(lerobot, Keys(objects="observation.state")).read(0).objects.shape == (6, 1, 3)
    with pytest.raises(ValueError, match=r"Keys.state must be a tuple of different keys"):
        Keys(state="observation.state")
    with pytest.raises(ValueError, match=r"Keys.state must name at least one key"):
        Keys(state=())


def test_a_recording_of_camo(tmp_path: Path) -> None:
    out = record(Recording(task="clean-plate", episodes=3, observation="state"), tmp_path / "camo")
    table = pq.read_table(out / "camo/episodes.parquet").to_pylist()
    data = pq.read_table(out / "data/chunk-000/file-000.parquet", partitioning=None)
    episodes = open_episodes(out)
    assert episodes.object_slots == (5, 7) and not episodes.views
    for index, episode in enumerate(load_episodes(episodes)):
        assert episode.objects.shape == (episodes.lengths[index], 5, 7) and episode.objects.dtype == np.float32
        rows = data.filter(pa.compute.equal(data["episode_index"], index))
        stored = np.array(rows["observation.environment_state"].to_pylist(), np.float32)
        np.testing.assert_array_equal(episode.objects.reshape(episode.length, -1), stored)
        assert episode.decision_steps == tuple(table[index]["decision_steps"]) != ()
        # The first number of a slot says whether the object is seen.
        assert set(np.unique(episode.objects[..., 0])) <= {0.0, 1.0}

    pq.write_table(pa.Table.from_pylist(table[:2]), out / "camo/episodes.parquet")
    with pytest.raises(ValueError, match=r"camo/episodes.parquet: expected the episodes 0 to 2, got 2 rows"):
        open_episodes(out)
    (out / "meta/info.json").unlink()
    with pytest.raises(FileNotFoundError, match="the recording is incomplete"):
        open_episodes(out)


# ------------------------------------------------------------------------------------------- other people's LeRobot datasets


def encoded(pixels: np.ndarray, kind: str) -> dict[str, Any]:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind)
    return {"bytes": buffer.getvalue(), "path": f"frame.{kind}"}


def write_foreign(
    root: Path, features: dict[str, dict], columns: dict[str, pa.Array], rows: list[dict] | None = None
) -> Path:
    """A LeRobot v3.0 dataset written with pyarrow alone, as lerobot does: doubles, integers, several tasks."""
    frames = sum(LENGTHS)
    starts = np.cumsum([0, *LENGTHS])
    index = {"index": np.arange(frames), "episode_index": np.repeat(np.arange(3), LENGTHS)}
    data = columns | {key: pa.array(values) for key, values in index.items()}
    data["next.done"] = pa.array([False] * frames)
    data["task_index"] = pa.array(np.zeros(frames, np.int64))
    place = {"data/chunk_index": 0, "data/file_index": 0}
    listed = [
        {"episode_index": i, "tasks": tasks, "length": LENGTHS[i], "dataset_from_index": int(starts[i]), **place}
        for i, tasks in enumerate((["push"], ["pull", "turn"], []))
    ]
    for row, more in zip(listed, rows or [], strict=bool(rows)):
        row.update(more)
    for path, table in (("data", pa.table(data)), ("meta/episodes", pa.Table.from_pylist(listed))):
        (root / path / "chunk-000").mkdir(parents=True)
        pq.write_table(table, root / path / "chunk-000/file-000.parquet")
    others = {"next.done": {"dtype": "bool", "shape": [1], "names": None}}
    info = {
        "codebase_version": "v3.0", "fps": 10, "total_episodes": 3, "total_frames": frames, "robot_type": None,
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
        "features": features | others | {key: {"dtype": "int64", "shape": [1], "names": None} for key in index},
    }  # fmt: skip
    (root / "meta/info.json").write_text(json.dumps(info))
    return root


def lists_of_doubles(key: str, size: int) -> pa.Array:
    return pa.array([row.tolist() for index in range(3) for row in numbers(key, index, size)], pa.list_(pa.float64()))


VECTORS = {
    "observation.state": {"dtype": "float64", "shape": [2], "names": {"motors": ["a", "b"]}},
    "action": {"dtype": "float32", "shape": [3], "names": None},
}


def with_image_columns(root: Path) -> Path:
    """Pictures of odd sizes in the data table, two of the views with the same last name, one with channels first."""
    image = {"dtype": "image", "shape": [*SIZE, 3], "names": ["height", "width", "channel"]}
    features = VECTORS | {
        "observation.image": image,
        "observation.images.wrist": image | {"shape": [3, *SIZE], "names": ["channels", "height", "width"]},
        "observation.other.wrist": image | {"names": None},
        "observation.images.depth": image | {"shape": [*SIZE, 1]},
    }
    columns = {key: lists_of_doubles(key, features[key]["shape"][0]) for key in VECTORS}
    kinds = {"observation.image": "png", "observation.images.wrist": "png", "observation.other.wrist": "png"}
    for key, kind in kinds.items():
        columns[key] = pa.array([encoded(frame, kind) for index in range(3) for frame in pictures(key, index)])
    return write_foreign(root, features, columns)


def test_pictures_in_the_data_table(tmp_path: Path) -> None:
    episodes = open_episodes(with_image_columns(tmp_path))
    names = {
        "image": "observation.image",
        "wrist": "observation.images.wrist",
        "observation.other.wrist": "observation.other.wrist",
    }
    assert episodes.views == dict.fromkeys(names, SIZE)
    assert episodes.instructions == ("push", "pull", "") and episodes.fps == 10
    for index, episode in enumerate(load_episodes(episodes)):
        state, actions = numbers("observation.state", index, 2), numbers("action", index, 3)
        images = {name: pictures(key, index) for name, key in names.items()}
        assert_equal(episode, state=state, actions=actions, **images)
    again = pickle.loads(pickle.dumps(episodes))
    np.testing.assert_array_equal(again.read(2).images["image"], pictures("observation.image", 2))

    data = tmp_path / "data/chunk-000/file-000.parquet"
    table = pq.read_table(data)
    column = table["observation.image"].to_pylist()
    column[7]["bytes"] = column[7]["bytes"][:60]
    number = table.column_names.index("observation.image")
    pq.write_table(table.set_column(number, "observation.image", pa.array(column)), data)
    with pytest.raises(
        ValueError, match=r"file-000.parquet, episode 1, observation.image, time step 1: the picture is damaged"
    ):
        open_episodes(tmp_path).read(1)
    pq.write_table(table.drop_columns(["observation.image"]), data)
    with pytest.raises(ValueError, match=r"file-000.parquet has no column observation.image, which"):
        open_episodes(tmp_path).read(1)


@pytest.mark.parametrize(
    ("codec", "options"), [("libx264", {"bf": "3", "g": "250"}), ("libsvtav1", {"g": "2", "preset": "10", "crf": "18"})]
)
def test_videos_of_others(codec: str, options: dict[str, str], tmp_path: Path) -> None:
    """Episodes on end in one video, with B-frames or in AV1; a second view whose videos were not copied."""
    if codec not in av.codecs_available:
        pytest.skip(f"this av has no {codec} to write with")
    size = (64, 96)
    names = ["height", "width", "channels"]
    video = {"dtype": "video", "shape": [*size, 3], "names": names, "info": {"video.codec": codec}}
    starts = np.cumsum([0, *LENGTHS]) / 10
    rows = [
        {f"videos/observation.images.{view}/{name}": value
         for view in ("top", "side") for name, value in (("chunk_index", 0), ("file_index", 0), ("from_timestamp", start))}
        for start in starts[:3]
    ]  # fmt: skip
    columns = {key: lists_of_doubles(key, feature["shape"][0]) for key, feature in VECTORS.items()}
    features = VECTORS | {"observation.images.top": video, "observation.images.side": video}
    write_foreign(tmp_path, features, columns, rows)
    folder = tmp_path / "videos/observation.images.top/chunk-000"
    folder.mkdir(parents=True)
    with av.open(str(folder / "file-000.mp4"), "w") as container:
        stream = container.add_stream(codec, rate=10, options=options)
        stream.height, stream.width, stream.pix_fmt = *size, "yuv420p"
        stream.codec_context.time_base = Fraction(1, 10)
        for number, pixels in enumerate(np.concatenate([smooth_pictures(index, size) for index in range(3)])):
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts, frame.time_base = number, Fraction(1, 10)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())

    with pytest.raises(FileNotFoundError, match=r"observation.images.side.*is missing.*Keys\(views=\('top',\)\)"):
        open_episodes(tmp_path)
    episodes = open_episodes(tmp_path, Keys(views=("top",)))
    for index in (2, 0, 1):
        difference = np.abs(episodes.read(index).images["top"].astype(int) - smooth_pictures(index, size))
        assert difference.mean(axis=(1, 2, 3)).max() < 4, "an earlier or later frame is 8 away"


# ------------------------------------------------------------------------------------------------------------ HDF5 and zarr


def write_hdf5(path: Path, *, state: dict[str, int] = ROBOT, images: tuple[str, ...] = ("front_image",)) -> Path:
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["env_args"] = json.dumps({"env_name": "Lift", "env_kwargs": {"control_freq": 20}})
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


def robot_state(index: int) -> np.ndarray:
    return np.concatenate([numbers(key, index, size) for key, size in ROBOT.items()], axis=1)


def test_robomimic(tmp_path: Path) -> None:
    episodes = open_episodes(write_hdf5(tmp_path / "lift.hdf5", images=("front_image", "hand_image")))
    assert (episodes.state_size, episodes.action_size, episodes.object_slots, episodes.fps) == (9, 7, None, 20)
    assert episodes.lengths == LENGTHS and episodes.instructions == ("",) * 3
    for index, episode in enumerate(load_episodes(pickle.loads(pickle.dumps(episodes)))):
        images = {view: pictures(view, index) for view in ("front_image", "hand_image")}
        assert_equal(episode, state=robot_state(index), actions=numbers("actions", index, 7), **images)
    without = open_episodes(tmp_path / "lift.hdf5", Keys(views=()))
    np.testing.assert_array_equal(without.read(1).objects, numbers("object", 1, 14)[:, None])
    assert without.object_slots == (1, 14)


@pytest.mark.parametrize("state", [{"ee_states": 6, "gripper_states": 2}, {"ee_pos": 3, "ee_ori": 3, "gripper_states": 1}])
def test_libero(state: dict[str, int], tmp_path: Path) -> None:
    path = write_hdf5(tmp_path / "task_demo.h5", state=state | {"joint_states": 7})
    with h5py.File(path, "a") as file:
        file["data"].attrs["problem_info"] = json.dumps({"language_instruction": "put the mug away"})
    episodes = open_episodes(path)
    assert episodes.instructions == ("put the mug away",) * 3
    # One number per time step is stored without a second axis.
    expected = [numbers(key, 2, *([size] if size > 1 else [])).reshape(LENGTHS[2], size) for key, size in state.items()]
    np.testing.assert_array_equal(episodes.read(2).state, np.concatenate(expected, axis=1))


def write_zarr(path: Path, version: int, *, images: np.ndarray | None = None, **arrays: np.ndarray) -> Path:
    group = zarr.open_group(path, mode="w", zarr_format=min(version, 3))
    data, meta = group.create_group("data"), group.create_group("meta")
    if images is None:
        images = np.concatenate([pictures("img", index) for index in range(3)])
    contents = {"action": np.concatenate([numbers("action", index, 2) for index in range(3)]),
                "state": np.concatenate([numbers("state", index, 5) for index in range(3)]),
                "keypoint": np.concatenate([numbers("keypoint", index, 9, 2) for index in range(3)]),
                "img": images}  # fmt: skip
    options = {2: {"compressors": numcodecs.Blosc("lz4", 5)}, 3: {}, BLOSC_3: {"compressors": zarr.codecs.BloscCodec()}}[
        version
    ]
    for key, values in (contents | arrays).items():
        data.create_array(key, data=values, chunks=(4, *values.shape[1:]), **options)
    meta.create_array("episode_ends", data=np.cumsum(LENGTHS))
    return path


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("kind", ["uint8", "0 to 255", "0 to 1"])
def test_replay_buffers(version: int, kind: str, tmp_path: Path) -> None:
    images = np.concatenate([pictures("img", index) for index in range(3)])
    images[: LENGTHS[0]] = 0  # a black episode does not say which scale it has
    if kind != "uint8":
        images = images.astype(np.float32) / (255 if kind == "0 to 1" else 1)
    path = write_zarr(tmp_path / "pusht.zarr", version, images=images)
    episodes = open_episodes(path)
    assert (episodes.lengths, episodes.state_size, episodes.action_size, episodes.fps) == (LENGTHS, 5, 2, None)
    assert episodes.object_slots is None and episodes.instructions == ("",) * 3
    for index, episode in enumerate(load_episodes(pickle.loads(pickle.dumps(episodes)))):
        expected = pictures("img", index) * (index > 0)
        assert_equal(episode, state=numbers("state", index, 5), actions=numbers("action", index, 2), img=expected)
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
    with pytest.raises(ValueError, match=r"data/img, episode 1: expected pixels from 0 to 1, .*got 0 to 255"):
        load_episodes(open_episodes(write_zarr(tmp_path / "mixed.zarr", 3, images=images)))
    with pytest.raises(ValueError, match=r"data/img, episode 0: expected pixels from 0 to 255, .*got -"):
        load_episodes(open_episodes(write_zarr(tmp_path / "negative.zarr", 3, images=images * 255 - 9)))
    images[7, 0, 0, 0] = np.nan
    with pytest.raises(ValueError, match=r"data/img, episode 1: a pixel at time step 1 is no finite number"):
        open_episodes(write_zarr(tmp_path / "nan.zarr", 3, images=images)).read(1)


# ---------------------------------------------------------------------------------------------------------- what is refused


def refused(path: Path, message: str, keys: Keys | None = None, error: type[Exception] = ValueError) -> None:
    with pytest.raises(error, match=message):
        load_episodes(open_episodes(path, keys or Keys()))


def truncate(path: Path, keep: float) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: int(keep * len(content))])


@pytest.mark.parametrize("keep", [0.0, 0.05, 0.5, 0.9, 0.999])
def test_truncated_videos(keep: float, lerobot: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(lerobot, tmp_path / "copy")
    truncate(copy / "videos/observation.images.wrist/chunk-000/file-000.mp4", keep)
    refused(copy, r"observation.images.wrist of episode \d cannot be read: .*chunk-000/file-000.mp4")


def test_truncated_tables(lerobot: Path, tmp_path: Path) -> None:
    for name in ("data", "meta/episodes"):
        copy = shutil.copytree(lerobot, tmp_path / name)
        truncate(copy / name / "chunk-000/file-000.parquet", 0.7)
        refused(copy, rf"{name}/chunk-000/file-000.parquet is damaged")


def test_truncated_hdf5(tmp_path: Path) -> None:
    for keep in (0.0, 0.3, 0.95):
        path = write_hdf5(tmp_path / "cut.hdf5")
        truncate(path, keep)
        refused(path, r"cut.hdf5 is damaged or cannot be read")


@pytest.mark.parametrize("version", [2, 3, BLOSC_3])
@pytest.mark.parametrize("keep", [0.0, 0.6, 0.99])
def test_truncated_chunks(version: int, keep: float, tmp_path: Path) -> None:
    path = write_zarr(tmp_path / "cut.zarr", version)
    truncate(path / ("data/state/2.0" if version == 2 else "data/state/c/2/0"), keep)
    refused(path, r"cut.zarr, data/state, episode 1: rows 6 to 8 are damaged")
    truncate(path / ("data/state/.zarray" if version == 2 else "data/state/zarr.json"), 0.5)
    refused(path, r"cut.zarr is damaged")


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("key", ["observation.state", "action"])
def test_not_finite_in_lerobot(key: str, value: float, tmp_path: Path) -> None:
    path = with_image_columns(tmp_path) / "data/chunk-000/file-000.parquet"
    table = pq.read_table(path)
    column = table[key].to_pylist()
    column[7][1] = value
    pq.write_table(table.set_column(table.column_names.index(key), key, pa.array(column)), path)
    refused(tmp_path, rf"file-000.parquet, {key}, episode 1: {value} at time step 1, dimension 1; expected finite")


@pytest.mark.parametrize(("key", "place"), [("actions", "actions"), ("robot0_eef_quat", "obs/robot0_eef_quat")])
def test_not_finite_in_hdf5(key: str, place: str, tmp_path: Path) -> None:
    path = write_hdf5(tmp_path / "bad.hdf5")
    with h5py.File(path, "a") as file:
        file[f"data/demo_10/{place}"][4, 2] = np.nan
    refused(path, rf"bad.hdf5, data/demo_10/{place}, episode 2: nan at time step 4, dimension 2")


@pytest.mark.parametrize(("key", "size"), [("action", 2), ("state", 5)])
def test_not_finite_in_zarr(key: str, size: int, tmp_path: Path) -> None:
    values = np.concatenate([numbers(key, index, size) for index in range(3)]).astype(np.float64)
    values[10, 0] = 1e300  # beyond float32
    path = write_zarr(tmp_path / "bad.zarr", 2, **{key: values})
    refused(path, rf"bad.zarr, data/{key}, episode 2: inf at time step 1, dimension 0")


def empty_lerobot(root: Path) -> Path:
    (root / "meta").mkdir()
    features = {key: feature | {"dtype": "float32"} for key, feature in VECTORS.items()}
    info = {
        "codebase_version": "v3.0",
        "fps": 10,
        "total_episodes": 0,
        "total_frames": 0,
        "data_path": "",
        "features": features,
    }
    (root / "meta/info.json").write_text(json.dumps(info))
    return root


def empty_hdf5(root: Path) -> Path:
    with h5py.File(root / "empty.hdf5", "w") as file:
        file.create_group("data")
    return root / "empty.hdf5"


def empty_zarr(root: Path) -> Path:
    path = write_zarr(root / "empty.zarr", 2)
    zarr.open_group(path, mode="a")["meta"].create_array("episode_ends", shape=(0,), dtype="i8", overwrite=True)
    return path


@pytest.mark.parametrize("make", [empty_lerobot, empty_hdf5, empty_zarr])
def test_empty_datasets(make: Callable[[Path], Path], tmp_path: Path) -> None:
    path = make(tmp_path)
    refused(path, f"{re.escape(str(path))} holds no episodes")


def test_lengths_that_do_not_agree(tmp_path: Path) -> None:
    def with_ends(*ends: int) -> Path:
        path = write_zarr(tmp_path / "ends.zarr", 3)
        zarr.open_group(path, mode="a")["meta"].create_array("episode_ends", data=np.array(ends), overwrite=True)
        return path

    refused(with_ends(6, 9, 20), r"ends.zarr, data/\w+: expected 20 time steps, where meta/episode_ends .*, got 14")
    refused(with_ends(6, 9), r"expected 9 time steps, .* got 14")
    refused(with_ends(6, 6, 14), r"ends.zarr, episode 1, action: expected at least 1 time step, got 0")
    refused(with_ends(9, 6, 14), r"ends.zarr, episode 1, action: expected at least 1 time step, got -3")
    path = write_zarr(tmp_path / "short.zarr", 3, state=np.zeros((13, 5)))
    refused(path, r"short.zarr, data/state: expected 14 time steps, .*got 13")

    path = write_hdf5(tmp_path / "unequal.hdf5")
    with h5py.File(path, "a") as file:
        del file["data/demo_9/obs/front_image"]
        file["data/demo_9/obs/front_image"] = pictures("x", 1)[:2]
    place = "unequal.hdf5, data/demo_9/obs/front_image, episode 1"
    refused(path, rf"{place}: expected 3 time steps, as many as actions has, got 2")
    with h5py.File(path, "a") as file:
        del file["data/demo_9/obs/front_image"]
        file["data/demo_9/obs/front_image"] = pictures("x", 1, (8, 8))
    refused(path, rf"{place}: expected pictures \(T, 12, 9, 3\) uint8, .* got \(3, 8, 8, 3\)")
    with h5py.File(path, "a") as file:
        del file["data/demo_9/obs/front_image"]
    refused(path, r"unequal.hdf5 has no data/demo_9/obs/front_image, which the first episode has")
    with h5py.File(path, "a") as file:
        del file["data/demo_9/actions"]
        file["data/demo_9/actions"] = np.zeros((3, 6))
    refused(path, r"data/demo_9/actions, episode 1: expected numbers of shape \(3, 7\), .* got \(3, 6\)", Keys(views=()))


def test_keys_that_do_not_exist(lerobot: Path, tmp_path: Path) -> None:
    hdf5, buffer = write_hdf5(tmp_path / "a.hdf5"), write_zarr(tmp_path / "a.zarr", 3)
    available = "Available: observation.state, action, observation.velocity"
    refused(lerobot, rf"has no state 'observation.stat'; did you mean 'observation.state'\? {available}",
            Keys(state=("observation.stat",)))  # fmt: skip
    refused(lerobot, r"has no view 'thrid'; did you mean 'third'\? Available: third, wrist", Keys(views=("thrid",)))
    refused(lerobot, rf"has no objects 'cube'. {available}", Keys(objects="cube"))
    refused(hdf5, r"a.hdf5 has no action 'action'; did you mean 'actions'\?", Keys(action="action"))
    refused(hdf5, r"a.hdf5 has no pictures .* 'object'. Available: front_image", Keys(views=("object",)))
    refused(buffer, r"a.zarr has no state 'agent_pos'. Available: ", Keys(state=("agent_pos",)))
    refused(buffer, r"a.zarr has no objects 'keypoints'; did you mean 'keypoint'\?", Keys(objects="keypoints"))
    unusual = write_hdf5(tmp_path / "b.hdf5", state={"joint_angles": 7})
    refused(unusual, r"b.hdf5: expected the robot's state .* are: .*joint_angles.*Choose among them with Keys\(state=")
    assert open_episodes(unusual, Keys(state=("joint_angles",))).state_size == 7


def test_unknown_formats(tmp_path: Path) -> None:
    refused(tmp_path / "nowhere", r"nowhere does not exist; .*chameleon record clean-plate --out", error=FileNotFoundError)
    refused(tmp_path, r"expected a LeRobot v3.0 dataset .*\.hdf5.*\.zarr.*; found an empty folder")
    (tmp_path / "table.csv").write_text("1,2")
    refused(tmp_path, r"found a folder with table.csv")
    refused(tmp_path / "table.csv", r"found a file that ends in '.csv'")
    with h5py.File(tmp_path / "other.hdf5", "w") as file:
        file["weights"] = np.zeros(3)
    refused(tmp_path / "other.hdf5", r"other.hdf5: expected robomimic's group data/ .*; found weights")
    zarr.open_group(tmp_path / "other.zarr", mode="w").create_array("weights", shape=(3,), dtype="f4")
    refused(tmp_path / "other.zarr", r"other.zarr: expected a replay buffer .*; data is missing, found \['weights'\]")
    (tmp_path / "bare.zarr").mkdir()
    refused(tmp_path / "bare.zarr", r"bare.zarr is damaged, or no replay buffer")


@pytest.mark.parametrize(
    ("name", "missing", "advice"),
    [
        ("a.hdf5", "'av', 'pyarrow', 'PIL', 'zarr'", None),
        ("a.hdf5", "'h5py'", "pip install 'chameleon-policy[hdf5]'"),
        ("a.zarr", "'zarr'", "pip install 'chameleon-policy[zarr]'"),
        ("lerobot", "'av'", "pip install 'chameleon-policy[camo]'"),
    ],
)
def test_nobody_needs_what_other_formats_need(
    name: str, missing: str, advice: str | None, lerobot: Path, tmp_path: Path
) -> None:
    write_hdf5(tmp_path / "a.hdf5")
    write_zarr(tmp_path / "a.zarr", 3)
    code = f"""
        import sys
        sys.modules.update(dict.fromkeys([{missing}]))
        from chameleon_policy.data import load_episodes, open_episodes
        try:
            print(len(load_episodes(open_episodes(sys.argv[1]))))
        except ImportError as error:
            print(error)
    """
    path = lerobot if name == "lerobot" else tmp_path / name
    result = subprocess.run([sys.executable, "-c", textwrap.dedent(code), path], capture_output=True, text=True)
    assert (advice or "3\n") in result.stdout, result.stderr
