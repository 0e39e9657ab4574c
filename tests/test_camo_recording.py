"""Recording: balanced, reproducible, resumable, never overwriting; videos and contact sheets."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import av
import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from chameleon_policy import recorder
from chameleon_policy.camo import CamoEnv
from chameleon_policy.camo.recording import Recording, demonstrate
from chameleon_policy.data import RecordedDataset
from chameleon_policy.exit_codes import INTERRUPTED
from chameleon_policy.recorder import record
from chameleon_policy.seeds import TRAINING_SEEDS

COMMAND = [sys.executable, "-m", "chameleon_policy.cli"]
STATE = Recording(task="clean-plate", episodes=5, seed=3, observation="state", retention_steps=2)


def run(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *map(str, arguments)], capture_output=True, text=True, cwd=cwd)


def table(path: Path) -> list[dict]:
    return pq.read_table(path / "camo/episodes.parquet").to_pylist()


def contents(path: Path) -> list[dict[str, np.ndarray]]:
    dataset = RecordedDataset(path)
    return [dataset.vectors(index) for index in range(len(dataset))]


def assert_same_datasets(one: Path, other: Path, apart_from: str = "") -> None:
    for a, b in zip(contents(one), contents(other), strict=True):
        assert a.keys() == b.keys()
        for key in a:
            np.testing.assert_array_equal(a[key], b[key])
    for a, b in zip(table(one), table(other), strict=True):
        assert {**a, apart_from: None} == {**b, apart_from: None}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(STATE, tmp_path_factory.mktemp("recording") / "state")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recording") / "rgb"
    result = run(
        "record",
        "shell-game",
        "--episodes",
        3,
        "--size",
        64,
        "--seed",
        1,
        "--workers",
        2,
        "--out",
        path,
        "--swaps",
        1,
    )
    assert result.returncode == 0, result.stderr
    return path


def test_an_episode_can_be_replayed_from_its_seed(recorded: Path) -> None:
    rows = table(recorded)
    env = CamoEnv("clean-plate", observation="state", retention_steps=2)
    for index, row in enumerate(rows):
        assert row["seed"] in TRAINING_SEEDS
        again = demonstrate(env, row["seed"], row["z"][0])
        vectors = RecordedDataset(recorded).vectors(index)
        np.testing.assert_array_equal(vectors["action"], again.actions)
        np.testing.assert_array_equal(
            vectors["observation.state"], [each["proprioception"] for each in again.observations]
        )
        seen = np.array([each["objects"].ravel() for each in again.observations])
        np.testing.assert_array_equal(vectors["observation.environment_state"], seen)
        assert row["decision_steps"] == [row["evidence_steps"] + 2]
        assert row["length"] == len(again.actions) > row["decision_steps"][0]
        assert (row["manipulation"], row["decision"], row["reason"]) == (True, True, "success")


def test_labels_are_clean_and_motions_are_disturbed(recorded: Path) -> None:
    """The label of a waiting expert is constant, while the arm trembles."""
    for row, vectors in zip(table(recorded), contents(recorded), strict=True):
        waiting = slice(5, row["decision_steps"][0])
        assert np.ptp(vectors["action"][waiting], axis=0).max() == 0
        tremble = vectors["observation.state"][waiting, :3].std(axis=0)
        assert (tremble > 0.001).all() and (tremble < 0.02).all()


@pytest.mark.parametrize(
    ("task", "episodes"), [("shell-game", 120), ("seasonings", 120), ("seasonings", 54)]
)
def test_answers_are_balanced_and_in_no_fixed_order(task: str, episodes: int) -> None:
    recording = Recording(task=task, episodes=episodes, observation="state")
    answers = [recording.answer(index) for index in range(episodes)]
    counts = Counter(answers)
    assert max(counts.values()) - min(counts.values()) <= (episodes % len(counts) > 0)
    size = len(counts)
    blocks = {tuple(answers[start : start + size]) for start in range(0, episodes - size + 1, size)}
    assert len(blocks) > 1
    assert answers != [
        Recording(task=task, episodes=episodes, observation="state", seed=1).answer(i)
        for i in range(episodes)
    ]


def test_the_number_of_processes_does_not_matter(recorded: Path, tmp_path: Path) -> None:
    assert_same_datasets(recorded, record(STATE, tmp_path / "two", workers=2))


def test_a_killed_recording_continues_where_it_stopped(recorded: Path, tmp_path: Path) -> None:
    out = tmp_path / "killed"
    options = "--episodes 5 --seed 3 --observation state --retention-steps 2 --workers 1"
    arguments = ["record", "clean-plate", *options.split(), "--out", str(out)]
    process = subprocess.Popen(
        [*COMMAND, *arguments], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    parts = out / "camo/unfinished"
    wait_for_episodes(out, 2, process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = [path.name for path in parts.glob("episode-*")]
    assert 2 <= len(done) < 5 and not (out / "meta/info.json").exists()
    with pytest.raises(FileNotFoundError, match="record command again"):
        RecordedDataset(out)
    changed = run(
        "record", "clean-plate", *options.replace("--seed 3", "--seed 4").split(), "--out", out
    )
    assert changed.returncode == 2 and "seed: 3 then, 4 now" in changed.stderr

    # Mark an episode that is done: the mark would be gone if it were recorded again.
    annotation = parts / f"annotation-{min(done)[-6:]}.json"
    annotation.write_text(annotation.read_text().replace('"attempts": 1', '"attempts": 17'))
    result = run(*arguments)
    assert result.returncode == 0, result.stderr
    assert not parts.exists()
    attempts = [row["attempts"] for row in table(out)]
    assert sorted(attempts) == [1, 1, 1, 1, 17]
    assert_same_datasets(recorded, out, apart_from="attempts")


def wait_for_episodes(out: Path, count: int, process: subprocess.Popen) -> None:
    """Wait until a running command has recorded so many episodes."""
    deadline = time.time() + 120
    while (
        len(list((out / "camo/unfinished").glob("episode-*"))) < count
        and process.poll() is None
        and time.time() < deadline
    ):
        time.sleep(0.02)


def group(leader: int) -> dict[int, str]:
    """Return the processes of a session and their command lines, from /proc."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ProcessLookupError):
            state, _, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(session) == leader and state != "Z":
                found[int(entry.name)] = (entry / "cmdline").read_text()
    return found


LONG = "record seasonings --episodes 40 --observation state --workers 2 --out"


def test_ctrl_c_stops_soon_and_leaves_a_recording_to_continue(tmp_path: Path) -> None:
    out = tmp_path / "interrupted"
    # Tests that run in the background of a shell ignore Ctrl-C, and so would this command.
    process = subprocess.Popen(
        [*COMMAND, *LONG.split(), str(out)],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    wait_for_episodes(out, 2, process)
    second = run(*LONG.split(), out)
    assert second.returncode == 2 and "another process is recording" in second.stderr
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the command and its workers
    _, said = process.communicate(timeout=60)
    assert (
        process.returncode == INTERRUPTED
        and "interrupted; the same command goes on" in said
        and "Traceback" not in said
    )
    assert not (out / "meta/info.json").exists()
    deadline = time.time() + 20
    while group(process.pid) and time.time() < deadline:
        time.sleep(0.1)
    assert not group(process.pid), "a worker is left"
    done = len(list((out / "camo/unfinished").glob("episode-*")))
    assert 2 <= done < 40


def kill_a_worker() -> Callable[[int], None]:
    """Return a progress that kills a recording process when the first episode is done."""
    killed: list[int] = []

    def progress(done: int) -> None:
        if done and not killed:
            worker = multiprocessing.active_children()[0]
            worker.kill()
            killed.append(done)

    return progress


def test_a_dead_worker_is_replaced(recorded: Path, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="a recording process died.*others take its place"):
        record(STATE, tmp_path / "died", workers=2, progress=kill_a_worker())
    assert_same_datasets(recorded, tmp_path / "died")


def test_workers_that_die_again_and_again_are_reported(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(recorder, "RESTARTS", 0)
    with pytest.raises(ValueError, match=r"a recording process died.*the same command goes on"):
        record(STATE, tmp_path / "died", workers=2, progress=kill_a_worker())


def test_nothing_is_overwritten(recorded: Path, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in recorded.rglob("*") if path.is_file()}
    with pytest.raises(
        FileExistsError, match=r"already holds a complete dataset.*chameleon data inspect"
    ):
        record(STATE, recorded)
    assert before == {path: path.read_bytes() for path in recorded.rglob("*") if path.is_file()}
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(FileExistsError, match="choose another --out"):
        record(STATE, tmp_path)
    with pytest.raises(FileExistsError, match="choose another --out"):
        record(STATE, tmp_path / "thesis.tex")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_videos_show_what_the_cameras_saw(pictures: Path) -> None:
    dataset, rows = RecordedDataset(pictures), table(pictures)
    assert dataset.schema.views == {"third": (64, 64), "wrist": (64, 64)}
    env = CamoEnv("shell-game", image_size=64, swaps=1)
    row = rows[2]
    again = demonstrate(env, row["seed"], row["z"][0])
    for view in ("third", "wrist"):
        stored = dataset.frames(2, view).astype(float)
        shown = np.array([each["images"][view] for each in again.observations], float)
        assert stored.shape == shown.shape
        error = np.abs(stored - shown).mean(axis=(1, 2, 3))
        other = np.abs(stored[:-6] - shown[6:]).mean(axis=(1, 2, 3))
        assert error.max() < 4.0  # compression
        assert other.max() > error.max(), (
            "frames could be shifted in time without this test noticing"
        )
    env.close()
    assert {row["swaps"] for row in rows} == {1} and sorted(row["z"][0] for row in rows) == [
        0,
        1,
        2,
    ]


def test_inspect_prints_a_summary_and_draws_a_contact_sheet(
    pictures: Path, recorded: Path, tmp_path: Path
) -> None:
    before = sorted(pictures.rglob("*"))
    result = run("data", "inspect", pictures, "--out", tmp_path / "sheet.png")
    assert result.returncode == 0, result.stderr
    assert sorted(pictures.rglob("*")) == before, "the dataset stays as it is"
    for text in ("3, ", "64 x 64", "0: 1, 1: 1, 2: 1", "Lift the cup", "7.5 Hz"):
        assert text in result.stdout
    sheet = np.asarray(Image.open(tmp_path / "sheet.png"))
    assert sheet.shape[0] > 3 * 64 and sheet.shape[1] > 9 * 64
    result = run("data", "inspect", recorded)
    assert result.returncode == 0 and "no contact sheet" in result.stdout
    missing = run("data", "inspect", tmp_path / "nowhere")
    assert missing.returncode == 2 and "not a directory" in missing.stderr


def test_play_writes_a_video_and_a_contact_sheet(tmp_path: Path) -> None:
    clip = tmp_path / "new" / "clip.mp4"
    result = run(
        "play", "shell-game", "--z", 2, "--seed", 7, "--size", 96, "--swaps", 1, "--out", clip
    )
    assert result.returncode == 0, result.stderr
    assert "z = 2, chosen: 2, success" in result.stdout
    with av.open(str(clip)) as container:
        stream = container.streams.video[0]
        frames = sum(1 for _ in container.decode(video=0))
        assert float(stream.average_rate) == 7.5 and stream.width == 192 and stream.height > 96
    env = CamoEnv("shell-game", observation="state", swaps=1)
    assert frames == len(demonstrate(env, 7, 2).actions) + 1
    sheet = np.asarray(Image.open(clip.with_suffix(".png")))
    assert sheet.shape[1] > 8 * 96 and sheet.std() > 10


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["record", "juggling", "--out", "x"], "the tasks are clean-plate, shell-game, seasonings"),
        (
            ["record", "seasonings", "--swaps", "1", "--out", "x"],
            "seasonings has no parameter swaps",
        ),
        (
            ["record", "shell-game", "--swaps", "many", "--out", "x"],
            "--swaps must be a number like 5 or a range like 3-10",
        ),
        (["record", "shell-game", "--size", "63", "--out", "x"], "image_size must be even"),
        (["record", "shell-game", "--episodes", "0", "--out", "x"], "episodes must be at least 1"),
        (["record", "shell-game", "--seed", "-1", "--out", "x"], "between 0 and"),
        (["record", "shell-game", "--workers", "0", "--out", "x"], "workers must be at least 1"),
        (
            ["record", "shell-game", "--observation", "state", "--out", "/proc/nothing/here"],
            "cannot write to",
        ),
        (["record", "shell-game", "--noise", "nan", "--out", "x"], "noise must be between 0 and"),
        (["record", "shell-game", "--swaps", "\u00b2", "--out", "x"], "--swaps must be a number"),
        (["play", "shell-game", "--seed", "-1"], "--seed must be at least 0"),
        (["play", "shell-game", "--z", "4"], "no answer z = 4"),
        (["play", "seasonings", "--z", "salt"], "numbers like 0,2,2"),
        (["play", "shell-game", "--out", "clip.gif"], ".mp4"),
        (["play", "shell-game", "--size", "4000"], "between 32 and"),
        (["play", "shell-game", "--out", "/proc/nothing/clip.mp4"], "cannot write to"),
    ],
)
def test_bad_commands_are_refused_in_one_line(
    arguments: list[str], message: str, tmp_path: Path
) -> None:
    result = run(*arguments, cwd=tmp_path)
    assert result.returncode == 2
    assert message in result.stderr and "Traceback" not in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_missing_extra_is_named() -> None:
    code = (
        "import sys; sys.modules['mujoco'] = None; sys.argv = ['chameleon', 'play', 'shell-game']; "
    )
    code += "from chameleon_policy.cli import main; main()"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 2
    assert (
        result.stderr.strip()
        == "chameleon: this command needs mujoco: pip install 'chameleon-policy[camo]'"
    )


def test_a_folder_without_permission_is_reported(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere; the case is covered by /proc above")
    tmp_path.chmod(0o500)
    with pytest.raises(ValueError, match="cannot write to"):
        record(STATE, tmp_path / "x")


def test_inspect_reports_damaged_files(recorded: Path, tmp_path: Path) -> None:
    for text, message in (
        ("{", " is not valid JSON"),
        ('{"codebase_version": "v3.0"}', ", fps: expected"),
    ):
        copy = shutil.copytree(recorded, tmp_path / "copy", dirs_exist_ok=True)
        (copy / "meta/info.json").write_text(text)
        result = run("data", "inspect", copy)
        assert result.returncode == 2 and f"info.json{message}" in result.stderr, result.stderr
    copy = shutil.copytree(recorded, tmp_path / "copy", dirs_exist_ok=True)
    data = copy / "data/chunk-000/file-000.parquet"
    data.write_bytes(data.read_bytes()[:-200])
    result = run("data", "inspect", copy)
    assert result.returncode == 2 and "file-000.parquet is damaged" in result.stderr, result.stderr


def test_a_dataset_can_be_pickled(recorded: Path) -> None:
    dataset = RecordedDataset(recorded)
    dataset.vectors(0)
    again = pickle.loads(pickle.dumps(dataset))
    np.testing.assert_array_equal(again.vectors(1)["action"], dataset.vectors(1)["action"])


def test_settings_are_saved_with_the_dataset(recorded: Path) -> None:
    settings = json.loads((recorded / "camo/recording.json").read_text())
    assert (
        settings["task"] == "clean-plate"
        and settings["seed"] == 3
        and settings["retention_steps"] == 2
    )
    assert RecordedDataset(recorded).info["robot_type"] == "ur5e"
