"""LeRobot datasets as training data, our own and those of others: they are read back as written."""

from __future__ import annotations

import io
import json
import pickle
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from chameleon_policy.camo.recording import Recording
from chameleon_policy.data import Keys, load_episodes, open_episodes
from chameleon_policy.recorder import record
from episode_files import (
    LENGTHS,
    SCHEMA,
    SIZE,
    TEXTS,
    assert_equal,
    numbers,
    pictures,
    refused,
    smooth_pictures,
    truncate,
)


def test_a_dataset_that_we_wrote(lerobot: Path) -> None:
    assert len(list(lerobot.glob("data/*/*.parquet"))) > 1
    episodes = open_episodes(lerobot)
    assert (len(episodes), episodes.lengths, episodes.instructions) == (3, LENGTHS, TEXTS)
    assert (episodes.state_size, episodes.action_size, episodes.object_slots, episodes.fps) == (
        3,
        2,
        None,
        7.5,
    )
    assert episodes.views == SCHEMA.views and episodes.source == lerobot
    seen: list[int] = []
    for index, episode in enumerate(load_episodes(episodes, workers=3, progress=seen.append)):
        np.testing.assert_array_equal(episode.state, numbers("observation.state", index, 3))
        np.testing.assert_array_equal(episode.actions, numbers("action", index, 2))
        assert (
            episode.instruction == TEXTS[index]
            and episode.decision_steps == ()
            and episode.objects is None
        )
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
    keys = Keys(
        state=("observation.velocity", "observation.state"),
        action="observation.state",
        views=("wrist",),
    )
    episodes = open_episodes(lerobot, keys)
    expected = [numbers("observation.velocity", 1, 1), numbers("observation.state", 1, 3)]
    np.testing.assert_array_equal(episodes.read(1).state, np.concatenate(expected, axis=1))
    np.testing.assert_array_equal(episodes.read(1).actions, expected[1])
    assert list(episodes.read(1).images) == ["wrist"] and (
        episodes.state_size,
        episodes.action_size,
    ) == (4, 3)
    assert list(open_episodes(lerobot, Keys(views=("observation.images.third",))).views) == [
        "third"
    ]
    assert open_episodes(lerobot, Keys(views=())).read(0).images == {}
    assert open_episodes(lerobot, Keys(objects="observation.state")).read(0).objects.shape == (
        6,
        1,
        3,
    )
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
        assert (
            episode.objects.shape == (episodes.lengths[index], 5, 7)
            and episode.objects.dtype == np.float32
        )
        rows = data.filter(pa.compute.equal(data["episode_index"], index))
        stored = np.array(rows["observation.environment_state"].to_pylist(), np.float32)
        np.testing.assert_array_equal(episode.objects.reshape(episode.length, -1), stored)
        assert episode.decision_steps == tuple(table[index]["decision_steps"]) != ()
        assert episode.answers == tuple(table[index]["z"]) and len(episode.answers) == 1
        # The first number of a slot says whether the object is seen.
        assert set(np.unique(episode.objects[..., 0])) <= {0.0, 1.0}

    pq.write_table(
        pa.Table.from_pylist([{**row, "z": [0, 1]} for row in table]), out / "camo/episodes.parquet"
    )
    with pytest.raises(
        ValueError, match=r"z: expected an answer for each of the decisions \(\d+,\), got \(0, 1\)"
    ):
        open_episodes(out)
    pq.write_table(pa.Table.from_pylist(table[:2]), out / "camo/episodes.parquet")
    with pytest.raises(
        ValueError, match=r"camo/episodes.parquet: expected the episodes 0 to 2, got 2 rows"
    ):
        open_episodes(out)
    (out / "meta/info.json").unlink()
    with pytest.raises(FileNotFoundError, match="the recording is incomplete"):
        open_episodes(out)


def encoded(pixels: np.ndarray, kind: str) -> dict[str, Any]:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind)
    return {"bytes": buffer.getvalue(), "path": f"frame.{kind}"}


def write_foreign(
    root: Path,
    features: dict[str, dict],
    columns: dict[str, pa.Array],
    rows: list[dict] | None = None,
) -> Path:
    """Write a LeRobot v3.0 dataset with pyarrow alone, as lerobot does.

    It has doubles, integers and several tasks.
    """
    frames = sum(LENGTHS)
    starts = np.cumsum([0, *LENGTHS])
    index = {"index": np.arange(frames), "episode_index": np.repeat(np.arange(3), LENGTHS)}
    data = columns | {key: pa.array(values) for key, values in index.items()}
    data["next.done"] = pa.array([False] * frames)
    data["task_index"] = pa.array(np.zeros(frames, np.int64))
    indices = {"data/chunk_index": 0, "data/file_index": 0}
    listed = [
        {
            "episode_index": i,
            "tasks": tasks,
            "length": LENGTHS[i],
            "dataset_from_index": int(starts[i]),
            **indices,
        }
        for i, tasks in enumerate((["push"], ["pull", "turn"], []))
    ]
    for row, more in zip(listed, rows or [], strict=bool(rows)):
        row.update(more)
    for path, table in (("data", pa.table(data)), ("meta/episodes", pa.Table.from_pylist(listed))):
        (root / path / "chunk-000").mkdir(parents=True)
        pq.write_table(table, root / path / "chunk-000/file-000.parquet")
    others = {"next.done": {"dtype": "bool", "shape": [1], "names": None}}
    info = {
        "codebase_version": "v3.0",
        "fps": 10,
        "total_episodes": 3,
        "total_frames": frames,
        "robot_type": None,
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
        "features": features
        | others
        | {key: {"dtype": "int64", "shape": [1], "names": None} for key in index},
    }
    (root / "meta/info.json").write_text(json.dumps(info))
    return root


def lists_of_doubles(key: str, size: int) -> pa.Array:
    return pa.array(
        [row.tolist() for index in range(3) for row in numbers(key, index, size)],
        pa.list_(pa.float64()),
    )


VECTORS = {
    "observation.state": {"dtype": "float64", "shape": [2], "names": {"motors": ["a", "b"]}},
    "action": {"dtype": "float32", "shape": [3], "names": None},
}


def with_image_columns(root: Path) -> Path:
    """Write a dataset whose pictures, of odd sizes, lie in the data table.

    Two of the views have the same last name, and one has its channels first.
    """
    image = {"dtype": "image", "shape": [*SIZE, 3], "names": ["height", "width", "channel"]}
    features = VECTORS | {
        "observation.image": image,
        "observation.images.wrist": image
        | {"shape": [3, *SIZE], "names": ["channels", "height", "width"]},
        "observation.other.wrist": image | {"names": None},
        "observation.images.depth": image | {"shape": [*SIZE, 1]},
    }
    columns = {key: lists_of_doubles(key, features[key]["shape"][0]) for key in VECTORS}
    kinds = {
        "observation.image": "png",
        "observation.images.wrist": "png",
        "observation.other.wrist": "png",
    }
    for key, kind in kinds.items():
        columns[key] = pa.array(
            [encoded(frame, kind) for index in range(3) for frame in pictures(key, index)]
        )
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
        ValueError,
        match=r"file-000.parquet, episode 1, observation.image, time step 1: "
        r"the picture is damaged",
    ):
        open_episodes(tmp_path).read(1)
    pq.write_table(table.drop_columns(["observation.image"]), data)
    with pytest.raises(
        ValueError, match=r"file-000.parquet has no column observation.image, which"
    ):
        open_episodes(tmp_path).read(1)


@pytest.mark.parametrize(
    ("codec", "options"),
    [("libx264", {"bf": "3", "g": "250"}), ("libsvtav1", {"g": "2", "preset": "10", "crf": "18"})],
)
def test_videos_of_others(codec: str, options: dict[str, str], tmp_path: Path) -> None:
    """Read episodes that lie one after the other in one video, with B-frames or in AV1.

    The videos of a second view are missing.
    """
    if codec not in av.codecs_available:
        pytest.skip(f"this av has no {codec} to write with")
    size = (64, 96)
    names = ["height", "width", "channels"]
    video = {"dtype": "video", "shape": [*size, 3], "names": names, "info": {"video.codec": codec}}
    starts = np.cumsum([0, *LENGTHS]) / 10
    rows = [
        {
            f"videos/observation.images.{view}/{name}": value
            for view in ("top", "side")
            for name, value in (("chunk_index", 0), ("file_index", 0), ("from_timestamp", start))
        }
        for start in starts[:3]
    ]
    columns = {key: lists_of_doubles(key, feature["shape"][0]) for key, feature in VECTORS.items()}
    features = VECTORS | {"observation.images.top": video, "observation.images.side": video}
    write_foreign(tmp_path, features, columns, rows)
    folder = tmp_path / "videos/observation.images.top/chunk-000"
    folder.mkdir(parents=True)
    with av.open(str(folder / "file-000.mp4"), "w") as container:
        stream = container.add_stream(codec, rate=10, options=options)
        stream.height, stream.width, stream.pix_fmt = *size, "yuv420p"
        stream.codec_context.time_base = Fraction(1, 10)
        for number, pixels in enumerate(
            np.concatenate([smooth_pictures(index, size) for index in range(3)])
        ):
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts, frame.time_base = number, Fraction(1, 10)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())

    with pytest.raises(
        FileNotFoundError, match=r"observation.images.side.*is missing.*Keys\(views=\('top',\)\)"
    ):
        open_episodes(tmp_path)
    episodes = open_episodes(tmp_path, Keys(views=("top",)))
    for index in (2, 0, 1):
        difference = np.abs(
            episodes.read(index).images["top"].astype(int) - smooth_pictures(index, size)
        )
        assert difference.mean(axis=(1, 2, 3)).max() < 4, "an earlier or later frame is 8 away"


@pytest.mark.parametrize("keep", [0.0, 0.05, 0.5, 0.9, 0.999])
def test_truncated_videos(keep: float, lerobot: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(lerobot, tmp_path / "copy")
    truncate(copy / "videos/observation.images.wrist/chunk-000/file-000.mp4", keep)
    refused(
        copy, r"observation.images.wrist of episode \d cannot be read: .*chunk-000/file-000.mp4"
    )


def test_truncated_tables(lerobot: Path, tmp_path: Path) -> None:
    for name in ("data", "meta/episodes"):
        copy = shutil.copytree(lerobot, tmp_path / name)
        truncate(copy / name / "chunk-000/file-000.parquet", 0.7)
        refused(copy, rf"{name}/chunk-000/file-000.parquet is damaged")


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("key", ["observation.state", "action"])
def test_not_finite_in_lerobot(key: str, value: float, tmp_path: Path) -> None:
    path = with_image_columns(tmp_path) / "data/chunk-000/file-000.parquet"
    table = pq.read_table(path)
    column = table[key].to_pylist()
    column[7][1] = value
    pq.write_table(table.set_column(table.column_names.index(key), key, pa.array(column)), path)
    refused(
        tmp_path,
        rf"file-000.parquet, {key}, episode 1: {value} at time step 1, dimension 1; "
        "expected finite",
    )


def test_an_empty_dataset(tmp_path: Path) -> None:
    (tmp_path / "meta").mkdir()
    features = {key: feature | {"dtype": "float32"} for key, feature in VECTORS.items()}
    info = {
        "codebase_version": "v3.0",
        "fps": 10,
        "total_episodes": 0,
        "total_frames": 0,
        "data_path": "",
        "features": features,
    }
    (tmp_path / "meta/info.json").write_text(json.dumps(info))
    refused(tmp_path, f"{re.escape(str(tmp_path))} holds no episodes")
