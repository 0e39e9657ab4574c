"""LeRobot datasets of strangers: they stay in their folder, and bad metadata are named."""

from __future__ import annotations

import json
import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from chameleon_policy.data import Keys, RecordedDataset, load_episodes, open_episodes
from chameleon_policy.data.video import encode_video
from episode_files import SCHEMA, refused
from test_lerobot_episodes import with_image_columns

INFO, LIST = "meta/info.json", "meta/episodes/chunk-000/file-000.parquet"
DATA = "data/chunk-000/file-000.parquet"
VIDEO = "videos/observation.images.third/chunk-000/file-000.mp4"


@pytest.fixture
def dataset(lerobot: Path, tmp_path: Path) -> Path:
    return shutil.copytree(lerobot, tmp_path / "dataset")


def change_info(dataset: Path, *names: str | int, value: Any) -> None:
    """Set info[names[0]][names[1]]... to a value; `...` removes it."""
    path = dataset / INFO
    info = json.loads(path.read_text())
    holder = info
    for name in names[:-1]:
        holder = holder[name]
    if value is ...:
        del holder[names[-1]]
    else:
        holder[names[-1]] = value
    path.write_text(json.dumps(info))


def change_table(path: Path, change: Callable[[list[dict]], object]) -> None:
    """Change the rows of a parquet file in place."""
    rows = pq.read_table(path, partitioning=None).to_pylist()
    change(rows)
    pq.write_table(pa.Table.from_pylist(rows), path)


def set_column(name: str, *values: Any) -> Callable[[list[dict]], None]:
    """Return a change of a column: to a value in each row, or to one value in all; `...`: gone."""

    def change(rows: list[dict]) -> None:
        for index, row in enumerate(rows):
            value = values[index % len(values)]
            row.pop(name) if value is ... else row.update({name: value})

    return change


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("/outside/file.parquet", "data_path, leads outside"),
        ("../outside/file.parquet", "data_path, leads outside"),
        ("data/../../outside/file.parquet", "data_path, leads outside"),
        ("data/../data/chunk-000/file-000.parquet", "data_path, leads outside"),
        ("data/\0", r"data_path, names no file: 'data/\\x00'"),
        ("{chunk_index:0300000000d}.parquet", "data_path: expected fields such as"),
        ("{chunk_index:999}.parquet", "data_path: expected fields such as"),
        ("{chunk_index:{file_index}}.parquet", "data_path: expected fields such as"),
        ("{chunk_index:x}.parquet", "data_path: expected fields such as"),
        ("{chunk_index!r}.parquet", "data_path: expected fields such as"),
        ("{chunk_index.__class__}", "data_path: expected fields such as"),
        ("{chunk_index[0]}", "data_path: expected fields such as"),
        ("{video_key}", "data_path: expected fields such as"),
        ("{foo}", "data_path: expected fields such as"),
        ("{}", "data_path: expected fields such as"),
        ("{", "data_path: '{' is no template"),
        ("x" * 10**5, "data_path, names no file: 'xxx"),
        ("x" * 300, "data_path, names no file: 'xxx"),
    ],
)
def test_paths_of_tables(template: str, message: str, dataset: Path) -> None:
    outside = dataset.parent / "outside"
    outside.mkdir()
    shutil.copy(dataset / DATA, outside / "file.parquet")
    template = template.replace("/outside", str(outside), 1) if template[0] == "/" else template
    change_info(dataset, "data_path", value=template)
    with pytest.raises(ValueError, match=message) as refusal:
        load_episodes(open_episodes(dataset))
    assert len(str(refusal.value)) < 2000


def test_paths_of_videos(dataset: Path) -> None:
    outside = shutil.copy(dataset / VIDEO, dataset.parent / "outside.mp4")
    for template in (str(outside), "../outside.mp4", "videos/../../outside.mp4"):
        change_info(dataset, "video_path", value=template)
        refused(dataset, "info.json, video_path, leads outside")
    for template in ("{video_key:99}.mp4", "{video_key.__class__.__mro__}", "{foo}.mp4"):
        change_info(dataset, "video_path", value=template)
        refused(dataset, "info.json, video_path: expected fields such as")


def test_names_of_features_are_no_paths(dataset: Path) -> None:
    shutil.copy(dataset / VIDEO, dataset.parent / "outside.mp4")
    info = json.loads((dataset / INFO).read_text())
    feature = info["features"].pop("observation.images.third")
    del info["features"]["observation.images.wrist"]
    info["features"]["../../outside"] = feature
    info["video_path"] = "videos/{video_key}.mp4"
    (dataset / INFO).write_text(json.dumps(info))
    fields = {"chunk_index": 0, "file_index": 0, "from_timestamp": 0.0}
    change_table(
        dataset / LIST,
        lambda rows: [
            row.update({f"videos/../../outside/{name}": value for name, value in fields.items()})
            for row in rows
        ],
    )
    refused(dataset, "info.json, video_path, leads outside")


@pytest.mark.parametrize("name", [INFO, LIST, DATA, VIDEO, "meta", "data", "videos"])
def test_links_out_of_the_folder(name: str, dataset: Path) -> None:
    outside = dataset.parent / "outside"
    (dataset / name).rename(outside)
    (dataset / name).symlink_to(outside)
    refused(dataset, r"leads outside .*dataset: .* is .*outside")


def test_links_inside_the_folder_and_in_the_cache_of_the_hub(lerobot: Path, tmp_path: Path) -> None:
    """Read a dataset as huggingface_hub downloads it: links to ../../blobs."""
    root = tmp_path / "datasets--me--mine"
    snapshot = shutil.copytree(lerobot, root / "snapshots/1234")
    (root / "blobs").mkdir()
    for number, path in enumerate(p for p in snapshot.rglob("*") if p.is_file()):
        path.rename(root / f"blobs/{number}")
        path.symlink_to(root / f"blobs/{number}")
    assert len(load_episodes(open_episodes(snapshot))) == 3
    (root / "blobs").rename(tmp_path / "elsewhere")
    (root / "blobs").symlink_to(tmp_path / "elsewhere")
    refused(snapshot, "leads outside")


def test_only_mp4_files_are_opened_as_videos(dataset: Path) -> None:
    outside = shutil.copy(dataset / VIDEO, dataset.parent / "outside.mp4")
    lists = {
        "x.m3u8": f"#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\nfile://{outside}\n"
        "#EXT-X-ENDLIST\n",
        "x.mp4": f"ffconcat version 1.0\nfile {outside}\n",
    }
    for name, text in lists.items():
        (dataset / "videos" / name).write_text(text)
        change_info(dataset, "video_path", value=f"videos/{name}")
        refused(dataset, rf"observation.images.third of episode 0 .*{name} is damaged")
    with av.open(str(dataset / "videos/x.mkv"), "w", format="matroska") as container:
        stream = container.add_stream("libx264", rate=10)
        stream.height, stream.width, stream.pix_fmt = 64, 96, "yuv420p"
        container.mux(stream.encode(av.VideoFrame(96, 64, "yuv420p")))
        container.mux(stream.encode())
    change_info(dataset, "video_path", value="videos/x.mkv")
    refused(dataset, r"x.mkv is damaged")


def png(height: int, width: int) -> bytes:
    """Return a PNG file of a few bytes that announces pictures of any size."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)

    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content))
            + kind
            + content
            + struct.pack(">I", zlib.crc32(kind + content))
        )

    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize(
    ("cell", "message"),
    [
        (png(12_000, 12_000), r"expected a colour picture of 12 x 9 pixels, got 12000 x 12000"),
        (png(10**6, 10**6), r"the picture is damaged"),
        (b"GIF89a" + bytes(20), r"the picture is damaged"),
        (b"", r"the picture is damaged"),
        (None, r"expected the bytes of a picture"),
    ],
)
def test_pictures_of_other_sizes(cell: bytes | None, message: str, tmp_path: Path) -> None:
    with_image_columns(tmp_path)
    change_table(
        tmp_path / DATA, set_column("observation.image", {"bytes": cell, "path": "frame.png"})
    )
    refused(tmp_path, rf"file-000.parquet, episode 0, observation.image, time step 0: {message}")
    change_table(tmp_path / DATA, set_column("observation.image", "frame.png"))
    refused(tmp_path, r"time step 0: expected the bytes of a picture, got 'frame.png'")


def test_videos_of_other_sizes(dataset: Path) -> None:
    frames = np.zeros((9, 128, 160, 3), np.uint8)
    encode_video(dataset / VIDEO, frames, SCHEMA.rate)
    refused(dataset, r"file-000.mp4: expected pictures of 64 x 96 pixels, .*, got 128 x 160; copy")


def test_videos_whose_header_lies_about_their_size(dataset: Path) -> None:
    """A header that says 64 x 96 does not make the decoder accept 2048 x 2048."""
    path = dataset / VIDEO
    encode_video(path, np.zeros((9, 2048, 2048, 3), np.uint8), SCHEMA.rate)
    content = path.read_bytes()
    big, small = struct.pack(">HH", 2048, 2048), struct.pack(">HH", 96, 64)
    assert content.count(b"avc1") and big in content[content.index(b"avc1", 40) :]
    path.write_bytes(content.replace(big, small))
    refused(dataset, r"file-000.mp4(: expected pictures of 64 x 96 pixels| is damaged)")


STATE = "observation.state"


@pytest.mark.parametrize(
    ("names", "value", "message"),
    [
        (("features", STATE, "shape"), [10**12], r"shape: expected at most 65,536 numbers"),
        (("features", STATE, "shape"), [9.7], r"state, shape: expected a list of whole numbers"),
        (("features", STATE, "shape"), [3.0], r"state, shape: expected a list of whole numbers"),
        (("features", STATE, "shape"), [True], r"state, shape: expected a list of whole numbers"),
        (("features", STATE, "shape"), [-1], r"state, shape: expected a list of whole numbers"),
        (("features", STATE, "shape"), ..., r"state, shape: expected a list .* got None"),
        (("features", STATE, "shape"), [4], r"expected 4 numbers in each of 6 rows, .* rows of 3"),
        (("features", STATE, "dtype"), 7, r"state, dtype: expected text, got 7"),
        (("features", STATE), [], r"features, observation.state: expected its dtype and shape"),
        (
            ("features", "observation.images.third", "shape"),
            [10**6, 10**6, 3],
            r"third, shape: expected sides of 1 to 8,192 pixels",
        ),
        (("features",), [], r"info.json, features: expected features by their names, got \[\]"),
        (("features",), ..., r"info.json, features: expected features by their names, got None"),
        (("fps",), "fast", r"info.json, fps: expected 0.01 to 10,000 per second, got 'fast'"),
        (("fps",), 0, r"info.json, fps: expected 0.01 to 10,000 per second, got 0"),
        (("fps",), 1e-300, r"info.json, fps: expected 0.01 to 10,000"),
        (("fps",), float("nan"), r"info.json, fps: expected 0.01 to 10,000 per second, got nan"),
        (("total_episodes",), 3.0, r"total_episodes: expected a whole number, .* got 3.0"),
        (("total_episodes",), 10**12, r"total_episodes: expected at most 1,000,000"),
        (("total_episodes",), 4, r"info.json says 4 episodes, meta/episodes lists 3"),
        (("data_path",), None, r"data_path: expected text, got None"),
        (("video_path",), 3, r"video_path: expected text or null, got 3"),
        (("video_path",), None, r"do not say in which file observation.images.third of episode 0"),
        (("robot_type",), {}, r"robot_type: expected text or null, got {}"),
        (("codebase_version",), ["v3.0"], r"codebase_version \['v3.0'\], expected 'v3.0'"),
    ],
)
def test_bad_info(names: tuple[str, ...], value: Any, message: str, dataset: Path) -> None:
    change_info(dataset, *names, value=value)
    refused(dataset, message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", r"info.json must hold a JSON object, and holds a list"),
        ("[" * 10**5, r"info.json is not valid JSON .nested too deep"),
        ("\udcff", r"info.json is not valid JSON"),
        (" " * (17 * 2**20), r"info.json is larger than 16 MiB"),
    ],
)
def test_info_that_is_no_object(text: str, message: str, dataset: Path) -> None:
    (dataset / INFO).write_text(text, errors="surrogateescape")
    refused(dataset, message)


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("episode_index", (...,), "has no column episode_index"),
        ("length", (...,), "has no column length"),
        ("tasks", (...,), "has no column tasks"),
        ("dataset_from_index", (...,), "has no column dataset_from_index"),
        ("length", (6.0, 3.0, 5.0), "episode 0, length: expected a whole number, .* got 6.0"),
        ("length", (None, 3, 5), "episode 0, length: expected a whole number, .* got None"),
        ("length", (10**12, 3, 5), "lengths are 1,000,000,000,008 frames together, .* 14"),
        ("length", (0, 3, 5), "episode 0, action: expected at least 1 time step, got 0"),
        ("episode_index", ("0", "1", "2"), "episode_index: expected a whole number"),
        ("episode_index", (None, 1, 2), "episode_index: expected a whole number"),
        ("episode_index", (0, 1, 1), "or not each of them once; copy the dataset again"),
        ("tasks", (3,), r"episode 0, tasks: expected a list of texts, got 3"),
        ("data/file_index", (-1,), "data/file_index: expected a whole number, at least 0"),
        ("data/file_index", (0.0,), "data/file_index: expected a whole number, at least 0"),
        ("data/file_index", (...,), "do not say in which file"),
        (
            "videos/observation.images.third/from_timestamp",
            (...,),
            "does not say where observation.images.third of episode 0 begins",
        ),
        (
            "videos/observation.images.third/from_timestamp",
            (1e300,),
            "from_timestamp: expected seconds, at least 0, got 1e",
        ),
        (
            "videos/observation.images.third/from_timestamp",
            ("0",),
            "from_timestamp: expected seconds, at least 0, got '0'",
        ),
    ],
)
def test_bad_episodes(column: str, values: tuple, message: str, dataset: Path) -> None:
    change_table(dataset / LIST, set_column(column, *values))
    refused(dataset, message)


def test_lengths_that_no_file_holds(dataset: Path) -> None:
    change_table(dataset / LIST, set_column("length", 10**12, 3, 5))
    change_info(dataset, "total_frames", value=10**12 + 8)
    refused(dataset, r"the pictures of .*dataset need .* GB of memory, and this machine has")
    refused(dataset, r"announces 1000000000000 time steps for episode 0", Keys(views=()))
    change_table(dataset / LIST, set_column("length", 7, 3, 5))
    refused(dataset, r"announces 7 time steps for episode 0, and .*parquet has 6 rows")


@pytest.mark.parametrize(
    ("name", "cells", "message"),
    [
        (STATE, [[0.0] * 3, [0.0] * 2, [0.0] * 4], r"expected 3 numbers .* got rows of 2, 3, 4"),
        (STATE, [[0.0] * 3, None], r"expected 3 numbers in each of 6 rows, .* got rows of 0, 3"),
        (STATE, [["x", "y", "z"]], r"file-000.parquet, episode 0, observation.state: expected num"),
        (STATE, ["x"], r"file-000.parquet, episode 0, observation.state: expected numbers, got st"),
        (STATE, [[0.0, None, 0.0]], r"nan at time step 0, dimension 1; expected finite numbers"),
        (STATE, [[0.0, 3e38, 0.0]], r"3e\+38 at time step 0, dimension 1; expected at most 1e\+15"),
        ("index", ["x"], r"file-000.parquet, index: expected a whole number in each row, got str"),
        ("index", [None, 1], r"index: expected a whole number in each row"),
        ("episode_index", [0.0], r"episode_index: expected a whole number in each row, got double"),
    ],
)
def test_bad_rows(name: str, cells: list, message: str, dataset: Path) -> None:
    change_table(dataset / DATA, set_column(name, *cells))
    refused(dataset, message, Keys(views=()))


def test_statistics_that_are_none(dataset: Path) -> None:
    for text in ("[]", '{"action": 3}', '{"action": {"min": ["x"]}}', "{"):
        (dataset / "meta/stats.json").write_text(text)
        with pytest.raises(ValueError, match=r"meta/stats.json"):
            _ = RecordedDataset(dataset).statistics


def test_object_slots_with_absurd_numbers(dataset: Path) -> None:
    change_info(
        dataset, "features", STATE, "names", value=["slot0.x", "slot999999999999.x", "slot1.y"]
    )
    episodes = open_episodes(dataset, Keys(views=(), objects=STATE))
    assert episodes.object_slots == (1, 3)
    change_info(dataset, "features", STATE, "names", value=[[[["x"]]], {}, None])
    assert open_episodes(dataset).state_size == 3


def test_nobody_is_told_to_record_a_foreign_dataset_again(dataset: Path) -> None:
    for name in (INFO, LIST, DATA, VIDEO):
        moved = (dataset / name).rename(dataset.parent / "moved")
        with pytest.raises((ValueError, FileNotFoundError)) as refusal:
            load_episodes(open_episodes(dataset))
        assert "opy the dataset again" in str(refusal.value)
        assert "record" not in str(refusal.value).replace(str(dataset), "")
        moved.rename(dataset / name)
