"""Whatever the metadata of a dataset say, it is read, or refused in a sentence of ours.

Every example changes a few things in a small dataset. Only what the readers promise may come out:
a ValueError, or a FileNotFoundError for a file that is missing.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from chameleon_policy.data import RecordedDataset, load_episodes, open_episodes
from chameleon_policy.report.dataset_summary import save_contact_sheet, summarise
from episode_files import write_hdf5, write_zarr
from test_lerobot_episodes import with_image_columns

EXAMPLES = [10, pytest.param(1000, marks=pytest.mark.slow)]
LONGEST_MESSAGE = 8000

numbers = st.sampled_from([0, 1, 2, 3, 7, -1, 255, 10**4, 10**6, 10**12, 2**63, 10**30])
floats = st.sampled_from([0.0, 0.5, 3.0, -1.0, 1e300, float("nan"), float("inf")])
texts = st.one_of(
    st.sampled_from(
        ["", "..", "/etc", "a/b", "\0", "\x1b[2J", "[/x]", "{x}", "{0}", "{chunk_index:9999d}"]
        + ["float32", "int64", "|O", "<f8", "<i8", "|u1", "string", "video", "image", "v3.0"]
        + ["pickle", "zlib", "bytes", "group", "array", "nan", "observation.state", "x" * 300]
    ),
    st.text(max_size=8),
)
leaves = st.one_of(st.none(), st.booleans(), numbers, floats, texts)
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


def places(tree: Any) -> list[tuple[Any, Any]]:
    """Return every (holder, key) in a JSON value."""
    if not isinstance(tree, dict | list):
        return []
    pairs = tree.items() if isinstance(tree, dict) else enumerate(tree)
    found = []
    for key, value in pairs:
        found += [(tree, key), *places(value)]
    return found


def change_json(draw: Callable[[st.SearchStrategy], Any], path: Path) -> None:
    """Replace, remove or add something anywhere in a JSON file."""
    tree = json.loads(path.read_text())
    known = places(tree)
    if not known or draw(st.integers(0, 30)) == 0:
        tree = draw(values)
    else:
        holder, key = known[draw(st.integers(0, len(known) - 1))]
        match draw(st.integers(0, 3)):
            case 0:
                del holder[key]
            case 1 if isinstance(holder, dict):
                holder[draw(texts)] = draw(values)
            case _:
                holder[key] = draw(values)
    path.write_text(json.dumps(tree), errors="surrogatepass")


def change_table(draw: Callable[[st.SearchStrategy], Any], path: Path) -> None:
    """Replace or remove a column of a parquet file, or some of its rows."""
    table = pq.read_table(path, partitioning=None)
    number = draw(st.integers(0, len(table.column_names) - 1))
    name = table.column_names[number]
    if draw(st.integers(0, 5)) == 0:
        pq.write_table(table.drop_columns([name]), path)
        return
    if draw(st.integers(0, 5)) == 0:
        pq.write_table(table.slice(draw(st.integers(0, 2)), draw(st.integers(0, 3))), path)
        return
    if len(table) and draw(st.booleans()):  # one cell, of the same type
        cells = table[name].to_pylist()
        for row in draw(st.lists(st.integers(0, len(cells) - 1), max_size=2)):
            cells[row] = draw(values)
    else:
        pattern = draw(st.lists(values, min_size=1, max_size=3))
        cells = [pattern[row % len(pattern)] for row in range(len(table))]
    try:
        column = pa.array(cells)
        pq.write_table(table.set_column(number, name, column), path)
    except (pa.ArrowException, OverflowError, UnicodeEncodeError):  # no such column exists
        return


def check(read: Callable[[], object]) -> None:
    """Read a dataset, on a machine with little memory; a refusal is a short sentence."""
    with patch("chameleon_policy.data.memory.machine_memory", lambda: 2**28):
        try:
            read()
        except (ValueError, FileNotFoundError) as error:
            # pathlib and numpy raise ValueErrors of their own, which would name no file
            assert type(error) in (ValueError, FileNotFoundError), repr(error)
            assert len(str(error)) < LONGEST_MESSAGE


def fuzz(examples: int, original: Path, spoil: Callable, read: Callable[[Path], object]) -> None:
    """Spoil copies of a dataset, and read them."""

    @settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def run(data: st.DataObject) -> None:
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / original.name
            if original.is_dir():
                shutil.copytree(original, copy)
            else:
                shutil.copy(original, copy)
            for _ in range(data.draw(st.integers(1, 2))):
                spoil(data.draw, copy)
            check(lambda: read(copy))

    run()


def read_everything(path: Path) -> None:
    load_episodes(open_episodes(path), workers=1)


def inspect(path: Path) -> None:
    dataset = RecordedDataset(path)
    summarise(dataset)
    save_contact_sheet(dataset, path.parent / "sheet.png", episodes=1)
    _ = dataset.statistics


@pytest.mark.parametrize("examples", EXAMPLES)
@pytest.mark.parametrize("read", [read_everything, inspect])
@pytest.mark.parametrize("kind", ["videos", "images"])
def test_lerobot(kind: str, read: Callable, examples: int, lerobot: Path, tmp_path: Path) -> None:
    original = lerobot if kind == "videos" else with_image_columns(tmp_path / "images")
    (tmp_path / "original").mkdir()
    original = shutil.copytree(original, tmp_path / "original/dataset")
    if kind == "videos":  # as Camo does
        (original / "camo").mkdir()
        common = {"attempts": 1, "seed": 0, "z_index": 0, "length": 3, "evidence_steps": 1}
        words = {"manipulation": "", "decision": "", "reason": ""}
        rows = [
            {"episode_index": index, "z": [0], "decision_steps": [2], **common, **words}
            for index in range(3)
        ]
        pq.write_table(pa.Table.from_pylist(rows), original / "camo/episodes.parquet")

    def spoil(draw: Callable, copy: Path) -> None:
        files = sorted([*copy.rglob("*.json"), *copy.rglob("*.parquet")])
        path = files[draw(st.integers(0, len(files) - 1))]
        (change_json if path.suffix == ".json" else change_table)(draw, path)

    fuzz(examples, original, spoil, read)


@pytest.mark.parametrize("examples", EXAMPLES)
@pytest.mark.parametrize("version", [2, 3])
def test_zarr(version: int, examples: int, tmp_path: Path) -> None:
    def spoil(draw: Callable, copy: Path) -> None:
        files = sorted(p for p in copy.rglob("*") if p.name in (".zarray", ".zgroup", "zarr.json"))
        change_json(draw, files[draw(st.integers(0, len(files) - 1))])

    fuzz(examples, write_zarr(tmp_path / "a.zarr", version), spoil, read_everything)


@pytest.mark.parametrize("examples", EXAMPLES)
def test_hdf5(examples: int, tmp_path: Path) -> None:
    sizes = st.sampled_from([0, 1, 2, 3, 6, 7, 9, 12, 10**6, 10**12])
    dtypes = st.sampled_from(["f4", "f8", "f2", "i8", "u1", "?", "S3", "c8", "V4", "O"])

    def spoil(draw: Callable, copy: Path) -> None:
        with h5py.File(copy, "a") as file:
            names: list[str] = []
            file.visit(names.append)
            if not names:
                return
            name = names[draw(st.integers(0, len(names) - 1))]
            match draw(st.integers(0, 4)):
                case 0:
                    attribute = draw(st.sampled_from(["env_args", "problem_info"]))
                    key = {"env_args": "env_kwargs", "problem_info": "language_instruction"}
                    value = draw(values)
                    value = {key[attribute]: value} if draw(st.booleans()) else value
                    if draw(st.booleans()):
                        value = json.dumps(value)
                    if "data" in file:
                        try:
                            file["data"].attrs[attribute] = value
                        except (TypeError, ValueError, OverflowError, RuntimeError):
                            return  # no such attribute exists
                case 1:
                    del file[name]
                case 2:
                    del file[name]
                    file.create_group(name)
                case 3:
                    del file[name]
                    file[name] = draw(
                        st.sampled_from(
                            [h5py.SoftLink("/data"), h5py.ExternalLink("/etc/passwd", "/x")]
                        )
                    )
                case _:
                    shape = tuple(draw(st.lists(sizes, max_size=4)))
                    kind = draw(dtypes)
                    dtype = h5py.string_dtype() if kind == "O" else np.dtype(kind)
                    del file[name]
                    chunks = tuple(min(max(size, 1), 4) for size in shape) or None
                    if 0 in shape:
                        chunks = None
                    file.create_dataset(name, shape=shape, dtype=dtype, chunks=chunks)

    fuzz(examples, write_hdf5(tmp_path / "a.hdf5"), spoil, read_everything)
