"""The first hour with the command line: help, mistakes, and checks before any work."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from chameleon_policy import __version__, console
from chameleon_policy.cli import COMMANDS, train
from chameleon_policy.data.schema import INFO_PATH
from chameleon_policy.exit_codes import REFUSED
from chameleon_policy.train.checkpoint import Progress
from chameleon_policy.train.metrics import Display
from command_line import chameleon_here, plain
from training_data import lines, make_episodes, write_demonstrations

SMALL = ("--preset", "nano", "--batch", 2, "--horizon", 4, "--device", "cpu")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("h5py")
    return write_demonstrations(tmp_path_factory.mktemp("data") / "d.hdf5", make_episodes([6, 7]))


def refused(*arguments: object) -> str:
    """Return the complaint of a command that does not begin."""
    done = chameleon_here(*arguments)
    assert done.returncode == REFUSED, done.stderr
    return plain(done.stderr)


def test_the_version() -> None:
    assert chameleon_here("--version").stdout == f"chameleon {__version__}\n"


@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in ("serve", "run")])
def test_help_names_values_and_says_each_default_once(command: str) -> None:
    pytest.importorskip("mujoco")
    shown = chameleon_here(command, "--help").stdout
    assert "{None}|INT" not in shown and "{None}|PATH" not in shown and "{None}|STR" not in shown
    assert "a GPU if there is one)" not in shown  # and then, once more: (default: auto)
    assert "--task STR" not in shown


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--steps", 0), "chameleon: --steps must be at least 1, got 0"),
        (("--minutes", -1), "chameleon: --minutes must be positive, got -1.0"),
        (("--steps", 3, "--batch", 0), "chameleon: --batch must be at least 1, got 0"),
        (("--steps", 3, "--minutes", 1), "chameleon: give the budget as --steps or as --minutes"),
        (("--steps", 3, "--rest-emphasis", 2), "chameleon: --decision-emphasis and"),
    ],
)
def test_wrong_settings_of_a_training_are_one_sentence(options, complaint: str) -> None:
    said = refused("train", "data", "--out", "run", *options)
    assert said.startswith(complaint) and "tyro" not in said and "Error parsing" not in said


def test_an_option_of_a_wrong_kind_is_named() -> None:
    assert "--batch" in refused("train", "data", "--out", "run", "--steps", 3, "--batch", "many")
    assert "--steps" in refused("train", "data", "--out", "run", "--stpes", 3)


def test_left_open_options_can_still_be_given_as_none(data: Path, tmp_path: Path) -> None:
    """A recipe's setting is taken back by None."""
    options = (*SMALL, "--recipe", "camo-state", "--steps", 2, "--action-steps", "None")
    done = chameleon_here("train", data, "--out", tmp_path / "run", *options, "--rest-emphasis", 1)
    assert done.returncode == 0, done.stderr
    settings = json.loads((tmp_path / "run/run.json").read_text())
    assert settings["policy"]["objective"]["action_steps"] is None


def test_mistyped_commands_and_tasks() -> None:
    pytest.importorskip("mujoco")
    assert "did you mean train?" in refused("tarin")
    assert "did you mean shell-game?" in refused("eval", "camo-small", "--task", "shel-game")


def test_a_training_without_a_budget_says_what_it_does(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train, "MINUTES", 0.002)
    done = chameleon_here("train", data, "--out", tmp_path / "run", *SMALL)
    assert done.returncode == 0, done.stderr
    assert "No budget is given: training for 0.002 minutes." in plain(done.stderr)
    assert lines(tmp_path / "run")


def test_the_last_step_is_printed(data: Path, tmp_path: Path) -> None:
    done = chameleon_here("train", data, "--out", tmp_path / "run", *SMALL, "--steps", 13)
    assert "step 13: loss" in plain(done.stderr)


def test_a_step_is_printed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    output = StringIO()
    metrics = {"loss": 1.0, "frames_per_second": 1.0}
    with Display(Console(file=output), active=True) as display:
        for step in (1, 2, 3):
            display.show(Progress(step, 1.0), 0.5, metrics)
    assert [line.partition(":")[0] for line in output.getvalue().splitlines()] == [
        "step 1",
        "step 3",
    ]


def test_the_next_step_after_a_training_fits_the_data(data: Path, tmp_path: Path) -> None:
    assert train.uses([data], Path("run")) == [
        "Serve it to a robot: chameleon serve run. Use it in Python: docs/tutorial.md."
    ]
    recording = tmp_path / "camo" / "recording.json"
    recording.parent.mkdir()
    recording.write_text(json.dumps({"task": "shell-game"}))
    assert not (tmp_path / INFO_PATH).exists()
    assert train.uses([tmp_path, data], Path("run")) == [
        "Evaluate it: chameleon eval run --task shell-game"
    ]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--steps", 0), "--steps must be at least 1, got 0"),
        (("--executed", 0), "--executed must be at least 1, got 0"),
        (("--executed", 99), "--executed must be at most 8, the actions of a chunk, got 99"),
        (("--parallel", 0), "--parallel must be at least 1, got 0"),
        (("--json", "/proc/nope/scores.json"), "--json: /proc/nope/scores.json cannot be written"),
        (("--json", "."), "--json must name a file, and . is a folder"),
    ],
)
def test_options_are_checked_before_anything_is_loaded(
    options, complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mujoco")
    from chameleon_policy.cli import eval as evaluation

    monkeypatch.setattr(evaluation, "load_for_evaluation", lambda *_: pytest.fail("loaded"))
    said = refused("eval", "camo-small", "--task", "shell-game", *options)
    assert complaint in said


def test_a_place_is_tried_without_a_trace(tmp_path: Path) -> None:
    (tmp_path / "scores.json").write_text("old")
    console.check_writable("json", tmp_path / "scores.json")
    console.check_writable("json", tmp_path / "new" / "scores.json")
    assert (tmp_path / "scores.json").read_text() == "old"
    assert list((tmp_path / "new").iterdir()) == []


def test_progress_is_told_without_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while nothing is finished, as when all episodes end at about the same time."""
    monkeypatch.setattr(console, "SECONDS_BETWEEN_LINES", 0.001)
    said, deadline = "", time.monotonic() + 60
    with console.progress_bar("playing [red]", 12) as advance:
        while "playing [red]: 0 of 12, 0:0" not in said and time.monotonic() < deadline:
            said += capsys.readouterr().err
        advance(5)
        while "playing [red]: 5 of 12, 0:0" not in said and time.monotonic() < deadline:
            said += capsys.readouterr().err
    assert time.monotonic() < deadline, said


def test_warnings_are_one_line() -> None:
    code = (
        "import sys, warnings; from chameleon_policy import cli\n"
        "sys.argv = ['chameleon', '--version']\n"
        "cli.prepared = lambda *_: lambda: warnings.warn('the disk is slow')\n"
        "sys.argv = ['chameleon', 'train']; cli.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "chameleon: the disk is slow\n"


@pytest.mark.parametrize(
    ("count", "said"), [(0, "0 episodes"), (1, "1 episode"), (2, "2 episodes")]
)
def test_one_episode(count: int, said: str) -> None:
    assert console.counted(count, "episode") == said
