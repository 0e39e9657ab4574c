"""Full and read-only disks: the message names the file, and nothing that was finished is lost."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import toy_suite
from chameleon_policy.baselines import load_policy
from chameleon_policy.camo.recording import Recording
from chameleon_policy.data import RecordedDataset
from chameleon_policy.evaluate.rollouts import Rollout
from chameleon_policy.evaluate.videos import save_failures
from chameleon_policy.exit_codes import REFUSED
from chameleon_policy.provenance import PROCESS_START, write_result
from chameleon_policy.recorder import record
from chameleon_policy.suite import EpisodeResult, SuccessScore
from chameleon_policy.train.metrics import JsonLines
from chameleon_policy.writing import whole_file
from command_line import chameleon_here
from training_data import losses, make_episodes, write_demonstrations

FULL = "No space left on device"
TRAINING = "--preset nano --horizon 4 --device cpu --steps 9 --batch 4 --log-steps 1"
OPTIONS = (*TRAINING.split(), "--checkpoint-steps", 3)
STATE = Recording(task="clean-plate", episodes=3, observation="state", retention_steps=2)


def no_space(*_: object) -> None:
    raise OSError(errno.ENOSPC, FULL)


def litter(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if "unfinished-" in path.name]


class SmallDisk:
    """A file system of its own, in memory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def resize(self, size: int) -> None:
        """Give it another size, in bytes."""
        self._mount("-o", f"remount,size={size}")

    def read_only(self) -> None:
        """Let nothing be written any more."""
        self._mount("-o", "remount,ro")

    def mount(self, size: int) -> bool:
        """Return whether this user may mount file systems."""
        self.folder.mkdir()
        return self._mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs")

    def _mount(self, *arguments: str) -> bool:
        command = ["mount", *arguments, str(self.folder)]
        return subprocess.run(command, capture_output=True).returncode == 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], SmallDisk]]:
    disk = SmallDisk(tmp_path / "disk")

    def mount(size: int) -> SmallDisk:
        if os.geteuid() != 0 or not disk.mount(size):
            pytest.skip("only root may mount a small disk")
        return disk

    yield mount
    if disk.folder.is_mount():
        subprocess.run(["umount", "--lazy", str(disk.folder)], check=True)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "demos.hdf5"
    return write_demonstrations(path, make_episodes([9, 14, 6, 11]))


@pytest.fixture(scope="module")
def trained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "uninterrupted"
    assert chameleon_here("train", data, "--out", out, *OPTIONS).returncode == 0
    return out


def assert_same_run(run: Path, expected: Path) -> None:
    assert losses(run) == losses(expected)
    weights = [load_policy(each / "policy").state_dict() for each in (run, expected)]
    assert all(bool((value == weights[1][name]).all()) for name, value in weights[0].items())


def test_a_file_is_whole_or_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "scores.json"
    path.write_text("old")
    with pytest.raises(OSError, match=f"{path}: {FULL}; the earlier"), whole_file(path) as file:
        file.write_text("ne")
        no_space()
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]
    with whole_file(path) as file:
        file.write_text("new")
    assert path.read_text() == "new" and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("at", ["checkpoint", "metrics"])
def test_training_says_what_is_safe_and_goes_on(
    data: Path, trained: Path, tmp_path: Path, monkeypatch, at: str
) -> None:
    """The disk is full at the second checkpoint, or at a line of the metrics."""
    run, synced, write = tmp_path / "run", [], JsonLines.write

    def fsync(file: int) -> None:
        synced.append(file)
        if len(synced) == 2:
            no_space()

    def write_a_line(sink: JsonLines, step: int, metrics: dict[str, float]) -> None:
        if step == 5:
            full = os.open("/dev/full", os.O_WRONLY)
            os.dup2(full, sink._file.fileno())
            os.close(full)
        write(sink, step, metrics)

    with monkeypatch.context() as disk:
        if at == "checkpoint":
            disk.setattr(os, "fsync", fsync)
        else:
            disk.setattr(JsonLines, "write", write_a_line)
        done = chameleon_here("train", data, "--out", run, *OPTIONS)
    assert done.returncode == REFUSED
    named = "checkpoints/step-00000006.safetensors" if at == "checkpoint" else "metrics.jsonl"
    assert f"cannot write {run / named}: {FULL}" in done.stderr
    assert "are whole. Correct that, and the same command goes on" in done.stderr
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["step-00000003.safetensors"]
    assert not litter(run)
    assert chameleon_here("train", data, "--out", run, *OPTIONS).returncode == 0
    assert_same_run(run, trained)


def test_training_on_a_small_disk(data: Path, trained: Path, small_disk) -> None:
    """Two checkpoints and a policy fit."""
    checkpoint = next((trained / "checkpoints").iterdir()).stat().st_size
    policy = (trained / "policy/model.safetensors").stat().st_size
    disk = small_disk(int(2.5 * checkpoint + policy))
    run = disk.folder / "run"
    done = chameleon_here("train", data, "--out", run, *OPTIONS)
    assert done.returncode == REFUSED and f"step-00000009.safetensors: {FULL}" in done.stderr
    assert not litter(run)
    disk.resize(6 * checkpoint)
    assert "Going on" in chameleon_here("train", data, "--out", run, *OPTIONS).stderr
    assert_same_run(run, trained)


def test_recording_on_a_small_disk(tmp_path: Path, small_disk) -> None:
    expected = record(STATE, tmp_path / "expected")
    disk = small_disk(40 * 1024)
    out = disk.folder / "data"
    with pytest.raises(OSError, match=FULL):
        record(STATE, out)
    parts = out / "camo/unfinished"
    finished = len(list(parts.glob("episode-*")))
    assert 0 < finished < STATE.episodes and not litter(out)
    disk.resize(10_000_000)
    done: list[int] = []
    record(STATE, out, progress=done.append)
    assert done == [*range(finished, STATE.episodes + 1)]
    for index in range(STATE.episodes):
        one, other = (RecordedDataset(path).vectors(index) for path in (expected, out))
        assert all(np.array_equal(one[key], other[key]) for key in one)


def test_scores_on_a_full_disk(small_disk) -> None:
    disk = small_disk(8 * 1024)
    scores = disk.folder / "scores.json"
    write_result(scores, {"right": 1}, command="eval", seeds=[1])
    disk.resize(4 * 1024)
    with pytest.raises(OSError, match=f"cannot write {scores}: {FULL}"):
        write_result(scores, {"right": "x" * 4096}, command="eval", seeds=[1])
    assert json.loads(scores.read_text())["result"] == {"right": 1}
    assert list(disk.folder.iterdir()) == [scores]


def test_a_jump_of_the_clock_changes_no_duration(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 0.0)
    write_result(tmp_path / "scores.json", {}, command="eval", seeds=[])
    spent = json.loads((tmp_path / "scores.json").read_text())["duration_s"]
    assert 0 <= spent <= time.monotonic() - PROCESS_START + 0.1


def test_videos_on_a_small_disk(small_disk) -> None:
    settings, wrong = toy_suite.LitSettings(), SuccessScore(False, "wrong side")
    rollouts = [
        Rollout(EpisodeResult(seed, None, wrong, {}, 2), np.zeros((2, 1))) for seed in range(8)
    ]
    disk = small_disk(12 * 1024)
    with pytest.raises(OSError, match=rf"cannot write {disk.folder}/\d+-wrong-side.mp4: {FULL}"):
        save_failures(settings, rollouts, disk.folder, size=64)
    videos = sorted(path.name for path in disk.folder.iterdir())
    assert videos and all(name.endswith("-wrong-side.mp4") for name in videos)
    assert not litter(disk.folder)


def test_a_folder_that_cannot_be_written_is_refused_first(data: Path, tmp_path: Path) -> None:
    done = chameleon_here("train", data, "--out", "/proc/nope", *OPTIONS)
    assert done.returncode == REFUSED
    assert "cannot write to /proc/nope" in done.stderr and "another --out" in done.stderr


def test_a_read_only_disk_is_refused_first(data: Path, small_disk) -> None:
    disk = small_disk(10_000)
    (disk.folder / "report").mkdir()
    disk.read_only()
    done = chameleon_here("train", data, "--out", disk.folder / "run", *OPTIONS)
    assert done.returncode == REFUSED and "Read-only file system" in done.stderr
    for command in ("report", "demo", "probe"):
        arguments = () if command == "demo" else ("camo-small", "--task", "shell-game")
        done = chameleon_here(command, *arguments, "--out", disk.folder / "report")
        assert done.returncode == REFUSED
        assert f"cannot write to {disk.folder / 'report'}" in done.stderr, command
