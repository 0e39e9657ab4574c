"""Look at a stranger's dataset: nothing in it is changed, and nothing in it is carried out."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from chameleon_policy.cli.data import main
from chameleon_policy.console import Terminal, printable, progress_bar
from chameleon_policy.data.video import encode_video
from command_line import chameleon_here
from episode_files import SCHEMA
from test_foreign_lerobot import DATA, LIST, VIDEO, change_info, change_table, set_column
from test_lerobot_episodes import with_image_columns

STATE = "observation.state"


@pytest.fixture
def dataset(lerobot: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("COLUMNS", "200")
    return shutil.copytree(lerobot, tmp_path / "mine")


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_sheet_lies_beside_the_dataset(dataset: Path) -> None:
    precious = dataset.parent / "precious.txt"
    precious.write_text("years of work")
    for name in ("contact-sheet.png", "mine-contact-sheet.png"):
        (dataset / name).symlink_to(precious)
    sheet = Path("mine-contact-sheet.png")
    sheet.symlink_to(precious)
    before = contents(dataset)
    main("inspect", dataset)
    assert contents(dataset) == before and precious.read_text() == "years of work"
    assert not sheet.is_symlink() and Image.open(sheet).width > 96
    other = dataset.parent / "other.jpg"
    main("inspect", dataset, other)
    assert Image.open(other).format == "JPEG"
    assert sorted(path.name for path in dataset.parent.iterdir()) == [
        "here",
        "mine",
        "other.jpg",
        "precious.txt",
    ]
    for path in (dataset.parent / "nowhere/sheet.png", dataset.parent):
        with pytest.raises(ValueError, match=r"cannot write the contact sheet|--out must be"):
            main("inspect", dataset, path)


def test_a_read_only_dataset(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (*dataset.rglob("*"), dataset):
        path.chmod(0o555 if path.is_dir() else 0o444)
    main("inspect", dataset)
    assert "Contact sheet: mine-contact-sheet.png" in capsys.readouterr().out


def test_statistics_are_not_needed(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("{}", "[]", "{"):
        (dataset / "meta/stats.json").write_text(text)
        main("inspect", dataset)
    (dataset / "meta/stats.json").unlink()
    change_table(dataset / DATA, set_column(STATE, [0.0, 7.0, 1.0], [0.5, 7.0, 1.5]))
    main("inspect", dataset)
    assert "observation.state" in capsys.readouterr().out


def test_texts_are_shown_and_not_carried_out(
    dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = ["pick the [red] cube", "[/foo]", "clear\x1b[2J the \x1b]0;title\x07 screen\u202e"]
    change_table(dataset / LIST, set_column("tasks", *([text] for text in texts)))
    strange = dataset.rename(dataset.parent / "y[bold]")
    main("inspect", strange)
    shown = capsys.readouterr().out
    for text in ("pick the [red] cube (1)", "[/foo] (1)", "y[bold]"):
        assert text in shown
    assert r"clear\x1b[2J the \x1b]0;title\x07 screen\u202e" in shown
    assert "\x1b" not in shown and "\u202e" not in shown


def test_errors_of_the_command_show_texts_too(dataset: Path) -> None:
    change_info(dataset, "fps", value="\x1b[2Jfast[/red]")
    result = chameleon_here("data", "inspect", dataset)
    assert result.returncode == 2 and r"got '\x1b[2Jfast[/red]'" in result.stderr
    change_info(dataset, "fps", value=7.5)
    change_info(dataset, "data_path", value="\x1b[2J{chunk_index:03d}/file.parquet")
    result = chameleon_here("data", "inspect", dataset)
    assert result.returncode == 2 and r"/\x1b[2J000/file.parquet is missing" in result.stderr


def test_terminals_show_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    Terminal().print("[/x] \x1b[2J")
    with progress_bar("[/y] \x1b[2J", 3) as advance:
        advance(3)
    shown = capsys.readouterr()
    assert "[/x] \\x1b[2J" in shown.out and "[/y] \\x1b[2J" in shown.err
    assert printable("a\tb\nc\u00e9 \U0001f600") == "a\tb\nc\u00e9 \U0001f600"
    assert printable("\r\x9b\udc80\u2066") == r"\r\x9b\udc80\u2066"


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_numbers_that_are_not_finite(
    value: float, dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = next(dataset.glob("data/*/file-001.parquet"))  # of the second episode
    change_table(path, set_column(STATE, [0.0, 1.0, 2.0], [0.0, value, value]))
    with pytest.raises(
        ValueError,
        match=rf"mine cannot be trained on. {STATE}, y, episode 1, time step 1: {value}, the first "
        r"of 2 numbers",
    ):
        main("inspect", dataset)
    shown = capsys.readouterr().out
    assert "│ refused" in shown and f"y, episode 1, time step 1: {value}" in shown


def test_outliers(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main("inspect", dataset)
    assert "│ outlier" not in capsys.readouterr().out
    change_table(dataset / DATA, lambda rows: rows[0][STATE].__setitem__(2, 3e38))
    main("inspect", dataset)
    shown = capsys.readouterr().out
    assert "observation.state, grip, episode 0, time step 0: 3e+38, where most lie" in shown


def test_pictures_of_other_sizes(dataset: Path, tmp_path: Path) -> None:
    tables = with_image_columns(tmp_path / "tables")
    main("inspect", tables)
    change_info(tables, "features", "observation.images.wrist", "shape", value=[3, 9, 12])
    with pytest.raises(ValueError, match=r"expected a colour picture of 9 x 12 pixels, got 12 x 9"):
        main("inspect", tables)
    encode_video(dataset / VIDEO, np.zeros((9, 128, 160, 3), np.uint8), SCHEMA.rate)
    with pytest.raises(ValueError, match=r"pictures of 64 x 96 pixels, .* got 128 x 160"):
        main("inspect", dataset)


def test_a_dataset_without_episodes(dataset: Path) -> None:
    change_info(dataset, "total_episodes", value=0)
    with pytest.raises(ValueError, match=r"mine holds no episodes; expected at least one"):
        main("inspect", dataset)


@pytest.mark.parametrize(
    "change",
    [
        {"z": None},
        {"z": ["x"]},
        {"seed": "0"},
        {"decision_steps": []},
        {"decision_steps": [10**6]},
        {"evidence_steps": 10**6},
        {"episode_index": 0},
    ],
)
def test_annotations_of_others(change: dict, dataset: Path) -> None:
    row = {
        "attempts": 1,
        "seed": 0,
        "z": [0],
        "z_index": 0,
        "length": 3,
        "evidence_steps": 1,
        "decision_steps": [2],
        "manipulation": None,
        "decision": None,
        "reason": None,
        "swaps": 1,
    }
    (dataset / "camo").mkdir()
    path = dataset / "camo/episodes.parquet"
    rows = [{"episode_index": index, **row} for index in range(3)]
    pq.write_table(pa.Table.from_pylist(rows), path)
    main("inspect", dataset)
    pq.write_table(pa.Table.from_pylist([each | change for each in rows]), path)
    with pytest.raises(ValueError, match=r"camo/episodes.parquet, "):
        main("inspect", dataset)
