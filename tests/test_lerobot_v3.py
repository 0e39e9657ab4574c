"""LeRobot v3.0 datasets: written and read back, read by others, continued after an interruption."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import textwrap
from itertools import pairwise
from pathlib import Path

import av
import numpy as np
import pyarrow.parquet as pq
import pytest
from av.video.frame import PictureType

from chameleon_policy.data import (
    FileLimits,
    RecordedDataset,
    Schema,
    assemble,
    part_indices,
    write_part,
)

SCHEMA = Schema(
    fps=7.5,
    robot_type="camo",
    views={"third": (64, 96), "wrist": (48, 48)},
    vectors={
        "observation.state": ("x", "y", "grip"),
        "action": ("dx", "dy"),
        "progress": ("done",),
    },
)
LENGTHS = [7, 12, 5, 9]
INSTRUCTIONS = ["pick the cube", "lift the café cup", "pick the cube", "pick the cube"]


def picture(height: int, width: int, number: int) -> np.ndarray:
    """Draw a smooth picture with the bits of `number` as blocks along its upper edge."""
    rows, columns = np.mgrid[0:height, 0:width].astype(np.float64)
    channels = [rows / height, columns / width, (rows + columns) / (height + width)]
    pixels = np.stack([60 + 120 * channel for channel in channels], axis=-1)
    block = width // 12
    for bit in range(10):
        pixels[: height // 4, (1 + bit) * block : (2 + bit) * block] = (
            235 if number >> bit & 1 else 20
        )
    return pixels.round().astype(np.uint8)


def drawn_number(pixels: np.ndarray) -> int:
    height, width = pixels.shape[:2]
    block = width // 12
    blocks = [
        pixels[: height // 4, (1 + bit) * block : (2 + bit) * block].mean() for bit in range(10)
    ]
    return sum((mean > 128) << bit for bit, mean in enumerate(blocks))


def make_episode(index: int, schema: Schema = SCHEMA) -> dict:
    """Frame t of episode i shows 100 i + t (plus 16 in the second view)."""
    length = LENGTHS[index]
    generator = np.random.default_rng(index)
    vectors = {
        key: generator.normal(size=(length, len(names))).astype(np.float32)
        for key, names in schema.vectors.items()
    }
    frames = {
        view: np.stack([picture(*size, 100 * index + t + 16 * number) for t in range(length)])
        for number, (view, size) in enumerate(schema.views.items())
    }
    return {"frames": frames, "vectors": vectors, "instruction": INSTRUCTIONS[index]}


def record(parts: Path, indices: range | list[int], schema: Schema = SCHEMA) -> None:
    for index in indices:
        write_part(parts, index, schema, **make_episode(index, schema))


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parts")
    record(folder, range(4))
    return folder


@pytest.fixture(scope="module")
def dataset_path(parts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dataset")
    assemble(parts, out, SCHEMA, range(4))
    return out


def episode_rows(dataset: Path) -> list[dict]:
    """Return the rows of meta/episodes."""
    path = dataset / "meta/episodes/chunk-000/file-000.parquet"
    return pq.read_table(path, partitioning=None).to_pylist()


def check_contents(path: Path, indices: list[int]) -> None:
    dataset = RecordedDataset(path)
    assert len(dataset) == len(indices)
    for number, index in enumerate(indices):
        expected = make_episode(index)
        episode = dataset.episodes[number]
        assert (episode.index, episode.length, episode.instruction) == (
            number,
            LENGTHS[index],
            INSTRUCTIONS[index],
        )
        vectors = dataset.vectors(number)
        assert vectors.keys() == SCHEMA.vectors.keys()
        for key, values in expected["vectors"].items():
            assert vectors[key].dtype == np.float32
            np.testing.assert_array_equal(vectors[key], values)
        for view, frames in expected["frames"].items():
            decoded = dataset.frames(number, view)
            assert decoded.shape == frames.shape and decoded.dtype == np.uint8
            assert [drawn_number(frame) for frame in decoded] == [
                drawn_number(frame) for frame in frames
            ]
            error = np.abs(decoded.astype(int) - frames).mean(axis=(1, 2, 3))
            assert error.max() < 2.5, (
                f"episode {index}, {view}: mean absolute error per frame {error}"
            )


def test_round_trip(dataset_path: Path) -> None:
    check_contents(dataset_path, [0, 1, 2, 3])
    assert RecordedDataset(dataset_path).schema == SCHEMA


def test_episodes_in_another_order_and_several_files(parts: Path, tmp_path: Path) -> None:
    limits = FileLimits(video_seconds=20 / 7.5, data_mb=0.0005, files_per_chunk=2)
    order = [3, 0, 2, 1]
    assemble(parts, tmp_path, SCHEMA, order, limits=limits)
    check_contents(tmp_path, order)
    # 9 + 7 frames fit into 20, 9 + 7 + 5 do not, 5 + 12 do.
    names = {
        str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.mp4") if "third" in str(path)
    }
    assert names == {f"videos/observation.images.third/chunk-000/file-00{i}.mp4" for i in (0, 1)}
    data = sorted(str(path.relative_to(tmp_path / "data")) for path in tmp_path.glob("data/*/*"))
    assert data == [f"chunk-00{i}/file-00{j}.parquet" for i in (0, 1) for j in (0, 1)]
    video_mb = FileLimits(video_mb=1e-6)
    assemble(parts, tmp_path, SCHEMA, order, limits=video_mb)
    assert len(list(tmp_path.glob("videos/observation.images.third/*/*.mp4"))) == 4
    check_contents(tmp_path, order)


def test_files_and_info(dataset_path: Path) -> None:
    files = {
        str(path.relative_to(dataset_path)) for path in dataset_path.rglob("*") if path.is_file()
    }
    videos = {f"videos/observation.images.{view}/chunk-000/file-000.mp4" for view in SCHEMA.views}
    tables = {
        "meta/tasks.parquet",
        "meta/episodes/chunk-000/file-000.parquet",
        "data/chunk-000/file-000.parquet",
    }
    assert files == {"meta/info.json", "meta/stats.json"} | tables | videos

    info = json.loads((dataset_path / "meta/info.json").read_text())
    assert info["codebase_version"] == "v3.0" and info["fps"] == 7.5
    assert (info["total_episodes"], info["total_frames"], info["total_tasks"]) == (
        4,
        sum(LENGTHS),
        2,
    )
    third = info["features"]["observation.images.third"]
    assert third["shape"] == [64, 96, 3]
    assert (
        third["info"]["video.codec"],
        third["info"]["video.pix_fmt"],
        third["info"]["video.fps"],
    ) == (
        "h264",
        "yuv420p",
        7.5,
    )


def test_columns_of_the_data_table(dataset_path: Path) -> None:
    data = pq.read_table(dataset_path / "data/chunk-000/file-000.parquet", partitioning=None)
    types = {name: str(data.schema.field(name).type) for name in data.column_names}
    assert types == {
        "observation.state": "fixed_size_list<element: float>[3]",
        "action": "fixed_size_list<element: float>[2]",
        "progress": "float",
        "timestamp": "float",
        **dict.fromkeys(("frame_index", "episode_index", "index", "task_index"), "int64"),
    }
    np.testing.assert_array_equal(data["index"], np.arange(sum(LENGTHS)))
    np.testing.assert_array_equal(
        data["timestamp"], np.concatenate([np.arange(n) / 7.5 for n in LENGTHS]).astype(np.float32)
    )
    np.testing.assert_array_equal(data["task_index"], np.repeat([0, 1, 0, 0], LENGTHS))


def test_tables_of_tasks_and_episodes(dataset_path: Path) -> None:
    tasks = pq.read_table(dataset_path / "meta/tasks.parquet")
    assert tasks.to_pydict() == {"task_index": [0, 1], "__index_level_0__": INSTRUCTIONS[:2]}
    assert json.loads(tasks.schema.metadata[b"pandas"])["index_columns"] == ["__index_level_0__"]

    rows = episode_rows(dataset_path)
    assert [(row["dataset_from_index"], row["dataset_to_index"]) for row in rows] == [
        (0, 7),
        (7, 19),
        (19, 24),
        (24, 33),
    ]
    assert rows[2]["videos/observation.images.wrist/from_timestamp"] == 19 / 7.5
    assert rows[2]["videos/observation.images.wrist/to_timestamp"] == 24 / 7.5


def test_video_has_exact_times_and_frequent_key_frames(dataset_path: Path) -> None:
    with av.open(
        str(dataset_path / "videos/observation.images.third/chunk-000/file-000.mp4")
    ) as container:
        stream = container.streams.video[0]
        assert (stream.average_rate, stream.frames) == (7.5, sum(LENGTHS))
        frames = list(container.decode(stream))
    assert [frame.time for frame in frames] == [n / 7.5 for n in range(sum(LENGTHS))]
    keys = [n for n, frame in enumerate(frames) if frame.key_frame]
    assert {0, 7, 19, 24} <= set(keys), "every episode begins with a key frame"
    assert max(b - a for a, b in pairwise(keys)) <= 8
    assert PictureType.B not in {frame.pict_type for frame in frames}


def test_statistics_of_vectors_agree_with_numpy(dataset_path: Path) -> None:
    statistics = RecordedDataset(dataset_path).statistics
    episodes = [make_episode(index) for index in range(4)]
    of_episode = [
        {
            key.removeprefix("stats/observation.state/"): np.array(value)
            for key, value in row.items()
            if "state" in key
        }
        for row in episode_rows(dataset_path)
    ]
    states = [episode["vectors"]["observation.state"].astype(np.float64) for episode in episodes]
    for found, values in [
        (statistics["observation.state"], np.concatenate(states)),
        *zip(of_episode, states, strict=True),
    ]:
        expected = {
            "min": values.min(0),
            "max": values.max(0),
            "mean": values.mean(0),
            "std": values.std(0),
        }
        expected |= {
            f"q{percent:02d}": np.percentile(values, percent, axis=0)
            for percent in (1, 10, 50, 90, 99)
        }
        assert found.keys() == {*expected, "count"} and found["count"] == [len(values)]
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-6, err_msg=name)


def test_statistics_of_pictures_agree_with_numpy(dataset_path: Path) -> None:
    statistics = RecordedDataset(dataset_path).statistics
    episodes = [make_episode(index) for index in range(4)]
    # No episode is longer than 100 frames, so every frame is in the sample.
    pixels = (
        np.concatenate([episode["frames"]["wrist"].reshape(-1, 3) for episode in episodes]) / 255
    )
    found = statistics["observation.images.wrist"]
    expected = {
        "min": pixels.min(0),
        "max": pixels.max(0),
        "mean": pixels.mean(0),
        "std": pixels.std(0),
    }
    expected |= {
        f"q{percent:02d}": np.percentile(pixels, percent, axis=0, method="inverted_cdf")
        for percent in (1, 10, 50, 90, 99)
    }
    for name, value in expected.items():
        assert found[name].shape == (3, 1, 1)
        np.testing.assert_allclose(found[name].ravel(), value, atol=1e-9, err_msg=name)
    first = episodes[0]["frames"]["wrist"].mean(axis=(0, 1, 2)) / 255
    np.testing.assert_allclose(
        np.ravel(episode_rows(dataset_path)[0]["stats/observation.images.wrist/mean"]),
        first,
        atol=1e-9,
    )


def test_without_views_and_with_whole_fps(tmp_path: Path) -> None:
    schema = Schema(fps=10, robot_type="camo", views={}, vectors=SCHEMA.vectors)
    record(tmp_path / "parts", range(2), schema)
    assemble(tmp_path / "parts", tmp_path / "out", schema, [0, 1])
    dataset = RecordedDataset(tmp_path / "out")
    assert (
        dataset.schema == schema
        and dataset.info["video_path"] is None
        and isinstance(dataset.info["fps"], int)
    )
    np.testing.assert_array_equal(
        dataset.vectors(1)["action"], make_episode(1, schema)["vectors"]["action"]
    )
    with pytest.raises(ValueError, match="no view 'third'; available: none"):
        dataset.frames(0, "third")


def test_recording_is_resumed_after_a_kill(tmp_path: Path) -> None:
    parts, out = tmp_path / "parts", tmp_path / "out"
    # The process dies while it writes the second episode's video.
    code = f"""
        import os, sys
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        import chameleon_policy.data.recorded_episodes as parts_module
        from pathlib import Path
        from test_lerobot_v3 import record
        parts = Path({str(parts)!r})
        record(parts, [0])
        def killed(path, frames, rate):
            path.write_bytes(b"half")
            os._exit(9)
        parts_module.encode_video = killed
        record(parts, [1])
    """
    killed = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True
    )
    assert killed.returncode == 9, killed.stderr
    assert len(list(parts.iterdir())) == 2, "the killed process has left an unfinished folder"
    assert part_indices(parts) == {0}
    with pytest.raises(
        FileNotFoundError, match=r"1 of 2 episodes are not yet recorded in .*: 1; run the command"
    ):
        assemble(parts, out, SCHEMA, [0, 1])
    record(parts, [1])
    assert part_indices(parts) == {0, 1} and len(list(parts.iterdir())) == 2
    assemble(parts, out, SCHEMA, [0, 1])
    check_contents(out, [0, 1])


def test_assembling_is_resumed_and_leaves_other_files_alone(
    parts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "camo").mkdir()
    (tmp_path / "camo/events.json").write_text("{}")
    assemble(parts, tmp_path, SCHEMA, range(4), limits=FileLimits(video_mb=1e-6))
    with monkeypatch.context() as patch:
        patch.setattr("chameleon_policy.data.lerobot_writer._write_tasks", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            assemble(parts, tmp_path, SCHEMA, [1, 0])
    with pytest.raises(FileNotFoundError, match=r"no LeRobot dataset, or an incomplete one"):
        RecordedDataset(tmp_path)
    assemble(parts, tmp_path, SCHEMA, [1, 0])
    check_contents(tmp_path, [1, 0])
    assert len(list(tmp_path.rglob("*.mp4"))) == 2, "videos of the earlier dataset are gone"
    assert (tmp_path / "camo/events.json").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"views": {"third": (65, 96)}},
            r"view 'third': height and width must be even .*got \(65, 96\)",
        ),
        ({"views": {"a/b": (64, 96)}}, "view 'a/b': a name is made of"),
        ({"fps": 0.0}, "fps must be a positive number"),
        ({"vectors": {}}, "at least one feature"),
        ({"vectors": {"timestamp": ("t",)}}, "reserved name"),
        ({"vectors": {"action": ("x", "x")}}, "one distinct name per element"),
        ({"robot_type": ""}, "must name the robot"),
    ],
)
def test_bad_schema(changes: dict, message: str) -> None:
    arguments = {
        "fps": 7.5,
        "robot_type": "camo",
        "views": SCHEMA.views,
        "vectors": SCHEMA.vectors,
    } | changes
    with pytest.raises(ValueError, match=message):
        Schema(**arguments)


def test_bad_episode(tmp_path: Path) -> None:
    def refused(message: str, *, instruction: str = "go", **changes: object) -> None:
        episode = make_episode(2)
        arrays = episode["frames"] | episode["vectors"] | changes
        with pytest.raises(ValueError, match=message):
            write_part(
                tmp_path,
                3,
                SCHEMA,
                frames={
                    key: value
                    for key, value in arrays.items()
                    if key in SCHEMA.views and value is not None
                },
                vectors={key: value for key, value in arrays.items() if key not in SCHEMA.views},
                instruction=instruction,
            )

    action = make_episode(2)["vectors"]["action"].copy()
    action[4, 1] = np.nan
    refused(r"episode 3, action: 'dy' is nan in frame 4", action=action)
    refused(r"episode 3: .* got .*action 4", action=action[:4])
    refused(
        r"episode 3, action: expected \(T, 2\) float32, got \(5, 2\) float64",
        action=np.zeros((5, 2)),
    )
    refused(
        r"episode 3, action: expected \(T, 2\) float32, got \(5, 3\)",
        action=np.zeros((5, 3), np.float32),
    )
    refused(
        r"episode 3, third: expected \(T, 64, 96, 3\) uint8",
        third=np.zeros((5, 96, 64, 3), np.uint8),
    )
    refused(r"expected the views \['third', 'wrist'\], got \['third'\]", wrist=None)
    refused(r"expected the vectors .*, got .*'speed'", speed=np.zeros((5, 1), np.float32))
    refused("expected an instruction", instruction=" ")
    assert not list(tmp_path.iterdir())


def test_bad_parts(parts: Path, tmp_path: Path) -> None:
    with pytest.raises(FileExistsError, match="episode 0 is already recorded"):
        record(parts, [0])
    with pytest.raises(ValueError, match=r"more than once: \[1\]"):
        assemble(parts, tmp_path, SCHEMA, [1, 0, 1])
    with pytest.raises(ValueError, match="got none"):
        assemble(parts, tmp_path, SCHEMA, [])
    other = Schema(fps=10, robot_type="camo", views=SCHEMA.views, vectors=SCHEMA.vectors)
    with pytest.raises(ValueError, match=r"recorded with fps = 7.5, expected 10.0"):
        assemble(parts, tmp_path, other, [0])
    assert part_indices(tmp_path / "nowhere") == set()


def test_bad_dataset(dataset_path: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="not a directory"):
        RecordedDataset(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"no meta/info.json"):
        RecordedDataset(tmp_path)
    copy = shutil.copytree(dataset_path, tmp_path / "copy")
    with pytest.raises(IndexError, match="episodes 0 to 3, got 4"):
        RecordedDataset(copy).vectors(4)
    (copy / "videos/observation.images.wrist/chunk-000/file-000.mp4").unlink()
    with pytest.raises(
        FileNotFoundError,
        match=r"file-000.mp4 is missing; it holds observation.images.wrist of episode 1",
    ):
        RecordedDataset(copy).frames(1, "wrist")
    (copy / "data/chunk-000/file-000.parquet").unlink()
    with pytest.raises(
        FileNotFoundError, match=r"file-000.parquet is missing; it holds observation.state, action"
    ):
        RecordedDataset(copy).vectors(1)
    (copy / "meta/episodes/chunk-000/file-000.parquet").unlink()
    with pytest.raises(FileNotFoundError, match="the list of episodes"):
        RecordedDataset(copy)
    info = json.loads((copy / "meta/info.json").read_text()) | {"codebase_version": "v2.1"}
    (copy / "meta/info.json").write_text(json.dumps(info))
    with pytest.raises(ValueError, match=r"codebase_version 'v2.1', expected 'v3.0'"):
        RecordedDataset(copy)
