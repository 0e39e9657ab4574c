"""Zarr datasets of strangers: none runs code, none is opened with an unknown codec."""

from __future__ import annotations

import json
import pickle
import re
import shutil
import sys
from pathlib import Path

import numcodecs
import numcodecs.pickles
import numpy as np
import pytest
import zarr

from chameleon_policy.data import Keys, load_episodes, open_episodes
from episode_files import LENGTHS, assert_equal, numbers, pictures, refused, write_zarr


class Marker:
    """A pickle of this writes a file when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return exec, (f"open({str(self.path)!r}, 'w')",)


@pytest.fixture
def trusting_numcodecs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decode pickles, as numcodecs did before 0.16.6."""
    monkeypatch.setattr(
        numcodecs.pickles.Pickle, "decode", lambda self, data, out=None: pickle.loads(bytes(data))
    )


def described(path: Path, name: str) -> dict:
    return json.loads((path / name).read_text())


def rewrite(path: Path, name: str, **changes: object) -> None:
    (path / name).write_text(json.dumps(described(path, name) | changes))


@pytest.mark.parametrize("name", ["meta/episode_ends", "data/action", "data/unused"])
@pytest.mark.parametrize(
    ("dtype", "codecs"),
    [
        ("|O", {"filters": [{"id": "vlen-utf8"}], "compressor": {"id": "pickle"}}),
        ("|O", {"filters": [{"id": "pickle"}], "compressor": None}),
        ("<i8", {"filters": [{"id": "delta", "dtype": "<i8"}, {"id": "pickle"}]}),
        ("<i8", {"compressor": {"id": "pickle"}}),
        ([["x", "<i8"]], {"compressor": None}),
    ],
)
def test_no_code_of_a_zarr_runs(
    name: str, dtype: object, codecs: dict, trusting_numcodecs: None, tmp_path: Path
) -> None:
    path, marker = write_zarr(tmp_path / "evil.zarr", 2), tmp_path / "marker"
    shutil.copytree(path / "data/state", path / "data/unused")
    rewrite(path, f"{name}/.zarray", dtype=dtype, **codecs)
    for chunk in (path / name).glob("[0-9]*"):
        chunk.write_bytes(pickle.dumps(Marker(marker)))
    asked = "pickle" if dtype == "<i8" else r"'\|O'|x"
    archive = Path(shutil.make_archive(str(tmp_path / "evil.zarr"), "zip", path))
    for source in (path, archive):
        with pytest.raises(ValueError) as refusal:
            load_episodes(open_episodes(source))
        assert not marker.exists(), "the pickle was run"
        assert re.search(rf"{name}/.zarray: .*({asked})", str(refusal.value))


@pytest.mark.parametrize(
    ("codecs", "named"),
    [
        ([{"name": "numcodecs.pickle"}], "numcodecs.pickle"),
        ([{"name": "bytes"}, "pickle"], "pickle"),
        ([{"name": "vlen-utf8"}, {"name": "zstd"}], "vlen-utf8"),
        (
            [
                {
                    "name": "sharding_indexed",
                    "configuration": {
                        "chunk_shape": [1],
                        "codecs": [
                            {
                                "name": "sharding_indexed",
                                "configuration": {"codecs": [{"name": "mine"}]},
                            }
                        ],
                        "index_codecs": [{"name": "bytes"}],
                    },
                }
            ],
            "mine",
        ),
        ([["bytes"]], "bytes"),
        ("bytes", "codecs: expected a list"),
        (None, "codecs: expected a list"),
    ],
)
def test_codecs_of_format_3(codecs: object, named: str, tmp_path: Path) -> None:
    path = write_zarr(tmp_path / "evil.zarr", 3)
    rewrite(path, "data/action/zarr.json", codecs=codecs)
    refused(path, rf"data/action/zarr.json.*{named}")


@pytest.mark.parametrize("dtype", ["string", {"name": "struct"}, None, "object"])
def test_types_of_format_3(dtype: object, tmp_path: Path) -> None:
    path = write_zarr(tmp_path / "evil.zarr", 3)
    rewrite(path, "meta/episode_ends/zarr.json", data_type=dtype)
    refused(path, r"meta/episode_ends/zarr.json: expected an array of numbers, got the type")


def test_consolidated_metadata_are_not_believed(trusting_numcodecs: None, tmp_path: Path) -> None:
    path, marker = write_zarr(tmp_path / "evil.zarr", 2), tmp_path / "marker"
    zarr.consolidate_metadata(path, zarr_format=2)
    listed = described(path, ".zmetadata")
    listed["metadata"]["meta/episode_ends/.zarray"] |= {
        "dtype": "|O",
        "filters": [{"id": "pickle"}],
        "compressor": None,
    }
    (path / ".zmetadata").write_text(json.dumps(listed))
    chunk = path / "meta/episode_ends/0"
    chunk.write_bytes(pickle.dumps(Marker(marker)))
    refused(path, "evil.zarr is damaged")
    assert not marker.exists()


@pytest.mark.parametrize(
    "codec",
    [numcodecs.Zlib(), numcodecs.LZ4(), numcodecs.BZ2(), numcodecs.LZMA(), numcodecs.Zstd(), None],
)
def test_usual_codecs_are_read(codec: object, tmp_path: Path) -> None:
    path = write_zarr(tmp_path / "usual.zarr", 2)
    actions = np.concatenate([numbers("action", index, 2) for index in range(3)])
    zarr.open_group(path, mode="a")["data"].create_array(
        "action", data=actions, overwrite=True, compressors=codec
    )
    np.testing.assert_array_equal(open_episodes(path).read(1).actions, numbers("action", 1, 2))


def test_filters_and_shards_are_read(tmp_path: Path) -> None:
    path = write_zarr(tmp_path / "filters.zarr", 2)
    zarr.open_group(path, mode="a")["meta"].create_array(
        "episode_ends",
        data=np.cumsum(LENGTHS),
        filters=[numcodecs.Delta("<i8"), numcodecs.Shuffle(8)],
        overwrite=True,
    )
    assert open_episodes(path).lengths == LENGTHS
    path = write_zarr(tmp_path / "shards.zarr", 3)
    state = np.concatenate([numbers("state", index, 5) for index in range(3)])
    zarr.open_group(path, mode="a")["data"].create_array(
        "state", data=state, overwrite=True, chunks=(2, 5), shards=(8, 5)
    )
    assert_equal(
        open_episodes(path).read(2),
        state=numbers("state", 2, 5),
        actions=numbers("action", 2, 2),
        img=pictures("img", 2),
    )


@pytest.mark.parametrize("address", ["s3://bucket/a.zarr", "https://example.org/a.zarr"])
def test_remote_stores_are_refused(address: str) -> None:
    refused(Path(address), "is an address; datasets are read from this machine")


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("part", ["data/action", "data", "meta", "chunk"])
def test_links_out_of_a_zarr_are_refused(part: str, version: int, tmp_path: Path) -> None:
    path = write_zarr(tmp_path / "linked.zarr", version)
    name = part
    if part == "chunk":
        name = "data/action/0.0" if version == 2 else "data/action/c/0/0"
    outside = tmp_path / "outside"
    (path / name).rename(outside)
    (path / name).symlink_to(outside)
    refused(path, rf"the link .*{name} leads outside .*linked.zarr")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"chunks": [10**12, 2]}, "expected chunks of at most 4 GiB"),
        ({"shape": [10**12, 2]}, "and at most 10,000,000 of them"),
        ({"chunks": [4]}, "as many dimensions as the shape"),
        ({"chunks": [0, 2]}, "chunks: expected a list of whole numbers, at least 1"),
        ({"shape": [14.5, 2]}, "shape: expected a list of whole numbers"),
        ({"shape": "14"}, "shape: expected a list of whole numbers"),
        ({"compressor": "zlib"}, "the codec 'zlib'"),
        ({"compressor": {"id": ["zlib"]}}, "the codec"),
    ],
)
def test_absurd_metadata(changes: dict, message: str, tmp_path: Path) -> None:
    path = write_zarr(tmp_path / "absurd.zarr", 2)
    rewrite(path, "data/action/.zarray", **changes)
    refused(path, rf"data/action/.zarray.*{message}")


def test_rows_that_no_file_holds(tmp_path: Path) -> None:
    path = write_zarr(tmp_path / "endless.zarr", 2)
    for key, sizes in (("action", [2]), ("state", [5])):
        rewrite(path, f"data/{key}/.zarray", shape=[10**12, *sizes], chunks=[10**6, *sizes])
    zarr.open_group(path, mode="a")["meta"].create_array(
        "episode_ends", data=np.array([10**12]), overwrite=True
    )
    refused(
        path,
        r"the rows of episode 0 in .*data/state need 20,000.0 GB of memory, and this machine has",
        Keys(views=()),
    )
    rewrite(path, "meta/episode_ends/.zarray", shape=[2 * 10**6])
    refused(path, r"meta/episode_ends: expected a list of whole numbers for at most 1,000,000")


def test_json_that_is_too_deep_or_too_large(tmp_path: Path) -> None:
    path = write_zarr(tmp_path / "deep.zarr", 2)
    (path / "data/action/.zarray").write_text("[" * 10**5)
    refused(path, r"data/action/.zarray is not valid JSON .nested too deep")
    (path / "data/action/.zarray").write_text('{"a": ' + "1" * (sys.get_int_max_str_digits() + 1))
    refused(path, r"data/action/.zarray is not valid JSON")
    with (path / "data/action/.zarray").open("wb") as file:
        file.truncate(17 * 2**20)
    refused(path, r"data/action/.zarray is larger than 16 MiB")
