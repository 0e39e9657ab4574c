"""Runs from the command line: killed, stopped, damaged, started twice, in two processes."""

from __future__ import annotations

import json
import math
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks import reliability
from chameleon_policy.baselines import load_policy
from chameleon_policy.cli import main
from chameleon_policy.data import load_episodes, open_datasets
from chameleon_policy.exit_codes import ALREADY_TRAINED, REFUSED
from chameleon_policy.train.config import RunConfig, TrainingConfig
from chameleon_policy.train.resuming import differences, write_settings
from chameleon_policy.train.training import build_policy
from command_line import chameleon_here, plain
from training_data import chameleon, lines, losses, make_episodes, write_demonstrations

STEPS = 21
NEW_POLICY = ("--preset", "nano", "--horizon", 4)
TRAINING = (
    *("--device", "cpu", "--steps", STEPS, "--batch", 4),
    *("--log-steps", 1, "--checkpoint-steps", 3),
    *("--learning-rate", 1e-3, "--warmup-steps", 5, "--optimizer", "muon"),
)
"""Options with both optimizers at work: Muon for matrices, AdamW for the rest."""
OPTIONS = (*NEW_POLICY, *TRAINING)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_demonstrations(
        tmp_path_factory.mktemp("data") / "demos.hdf5", make_episodes([9, 14, 6, 11, 7, 12])
    )


def run_to_the_end(data: Path, out: Path, *options: object) -> str:
    """Train with `OPTIONS` in this process; return the command's messages."""
    return train_here(data, "--out", out, *OPTIONS, *options)


def train_here(*arguments: object) -> str:
    """Run `chameleon train` in this process; return its messages."""
    done = chameleon_here("train", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stderr


def wait_for_step(process, run: Path, step: int) -> None:
    deadline = time.monotonic() + 240
    while not any(line["step"] >= step for line in _readable(run)):
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.005)


def _readable(run: Path) -> list[dict[str, float]]:
    try:
        return lines(run)
    except json.JSONDecodeError:  # caught in the middle of a line
        return []


@pytest.fixture(scope="module")
def uninterrupted(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "uninterrupted"
    run_to_the_end(data, out)
    return out


def weights(run: Path) -> dict[str, bytes]:
    """Return the weights of a run's policy to the last bit."""
    return {
        name: weight.numpy().tobytes()
        for name, weight in load_policy(run / "policy").state_dict().items()
    }


def test_a_run_leaves_all_its_files(uninterrupted: Path) -> None:
    assert [line["step"] for line in lines(uninterrupted)] == list(range(1, STEPS + 1))
    assert lines(uninterrupted)[-1]["loss"] < lines(uninterrupted)[0]["loss"]
    settings = json.loads((uninterrupted / "run.json").read_text())
    assert settings["training"]["seed"] == 0
    assert settings["data"]["frames"] == 59
    assert settings["git_revision"]
    assert settings["statistics"]["action"]["low"]
    kept = sorted(path.name for path in (uninterrupted / "checkpoints").iterdir())
    assert kept == [f"step-{step:08d}.safetensors" for step in (15, 18, 21)]
    policy = load_policy(uninterrupted / "policy")
    assert policy.method == "chameleon"
    assert policy.provenance == {
        "seed": 0,
        "git_revision": settings["git_revision"],
        "start_from": None,
    }


@pytest.mark.parametrize("kill_at", [5, pytest.param(13, marks=pytest.mark.slow)])
def test_killed_and_resumed_is_the_same_run(
    data: Path, uninterrupted: Path, tmp_path: Path, kill_at: int
) -> None:
    out = tmp_path / "run"
    process = chameleon("train", data, "--out", out, *OPTIONS)
    wait_for_step(process, out, kill_at)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert losses(out) != losses(uninterrupted)
    assert "Going on" in run_to_the_end(data, out)
    assert losses(out) == losses(uninterrupted)
    assert weights(out) == weights(uninterrupted)


@pytest.mark.slow
def test_twenty_kills_change_nothing() -> None:
    done = reliability.killed_training(kills=20, seed=0)
    assert len(set(done["killed_at_steps"])) > 10
    assert done["differing_lines"] == done["differing_tensors"] == 0


@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGTERM, marks=pytest.mark.slow), signal.SIGINT]
)
def test_signals_save_first(
    data: Path, uninterrupted: Path, tmp_path: Path, number: signal.Signals
) -> None:
    out = tmp_path / "run"
    process = chameleon("train", data, "--out", out, *OPTIONS, "--checkpoint-steps", 1000)
    wait_for_step(process, out, 4)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert "the same command goes on" in errors
    saved = sorted((out / "checkpoints").iterdir())
    assert len(saved) == 1
    assert int(saved[0].stem.split("-")[1]) == lines(out)[-1]["step"]
    run_to_the_end(data, out, "--checkpoint-steps", 1000)
    assert losses(out) == losses(uninterrupted)
    assert weights(out) == weights(uninterrupted)


def test_a_truncated_checkpoint_is_passed_over(
    data: Path, uninterrupted: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    process = chameleon("train", data, "--out", out, *OPTIONS)
    wait_for_step(process, out, 10)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    newest = sorted((out / "checkpoints").glob("step-*.safetensors"))[-1]
    newest.write_bytes(newest.read_bytes()[:-1000])
    (out / "checkpoints/.unfinished-step-00000099.safetensors").write_bytes(b"half")
    with pytest.warns(UserWarning, match=f"{newest} cannot be read"):
        run_to_the_end(data, out)
    assert losses(out) == losses(uninterrupted)
    assert not list((out / "checkpoints").glob(".unfinished-*"))


@pytest.mark.slow
def test_two_processes_are_one_with_the_doubled_batch(data: Path, tmp_path: Path) -> None:
    """Compare two processes with half of the batch each with one that computes both in turn."""
    launcher = (
        *("-m", "accelerate.commands.launch", "--multi_gpu"),
        *("--num_processes", "2", "--num_machines", "1"),
        *("--mixed_precision", "no", "--dynamo_backend", "no", "-m"),
    )
    few = (*OPTIONS, "--steps", 12)
    process = chameleon("train", data, "--out", tmp_path / "two", *few, launcher=launcher)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    run_to_the_end(data, tmp_path / "one", "--accumulate", 2, "--steps", 12)
    run_to_the_end(data, tmp_path / "other", "--accumulate", 2, "--steps", 12, "--seed", 1)
    two, one, other = (torch.tensor(losses(tmp_path / name)) for name in ("two", "one", "other"))
    torch.testing.assert_close(two, one, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(other, one, rtol=1e-2)
    for name, weight in load_policy(tmp_path / "one/policy").state_dict().items():
        torch.testing.assert_close(
            load_policy(tmp_path / "two/policy").state_dict()[name], weight, rtol=1e-3, atol=1e-4
        )


def test_two_trainings_in_one_folder_are_refused(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    first = chameleon("train", data, "--out", out, *OPTIONS, "--steps", 100_000)
    wait_for_step(first, out, 1)
    second = chameleon("train", data, "--out", out, *OPTIONS, "--steps", 100_000)
    _, errors = second.communicate(timeout=120)
    first.kill()
    first.communicate()
    assert second.returncode == 2
    assert "another process is training in" in errors


def complaint(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    *arguments: object,
    status: int = REFUSED,
) -> str:
    monkeypatch.setattr("sys.argv", ["chameleon", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == status
    return plain(capsys.readouterr().err)


def test_refusals(data: Path, uninterrupted: Path, tmp_path: Path, capsys, monkeypatch) -> None:
    def refused(
        *options: object, source: Path = data, out: Path = tmp_path / "new", status: int = REFUSED
    ) -> str:
        return complaint(
            capsys, monkeypatch, "train", source, "--out", out, *options, status=status
        )

    assert "its budget is spent" in refused(*OPTIONS, out=uninterrupted, status=ALREADY_TRAINED)
    changed = refused(*OPTIONS, "--learning-rate", "2e-3", out=uninterrupted)
    assert "training.learning_rate: 0.001 then, 0.002 now" in changed
    assert "--steps or as --minutes" in refused("--steps", 5, "--minutes", 1)
    assert "multiple of 3" in refused(
        "--steps", 5, "--batch", 4, "--accumulate", 3, "--device", "cpu", "--preset", "nano"
    )
    assert "no method 'chamelon'" in refused(
        "--steps", 5, "--method", "chamelon", "--device", "cpu"
    )
    assert "say how many with --action-steps" in refused("--steps", 5, "--rest-emphasis", 0.1)
    (tmp_path / "other-files").mkdir()
    (tmp_path / "other-files/thesis.tex").write_text("years of work")
    assert "files of something else" in refused(*OPTIONS, out=tmp_path / "other-files")
    assert "--start-from decides" in refused(
        "--steps", 5, "--horizon", 4, "--start-from", uninterrupted
    )
    other = write_demonstrations(tmp_path / "other.hdf5", make_episodes([5, 5], action=3))
    wrong = refused("--steps", 5, "--device", "cpu", "--start-from", uninterrupted, source=other)
    assert "numbers of an action: 2 in" in wrong
    assert "3 in the data" in wrong


def test_a_run_is_extended_and_its_checkpoints_moved(
    data: Path, tmp_path: Path, capsys, monkeypatch
) -> None:
    run, shorter, longer = tmp_path / "run", ("--steps", 6), ("--steps", 12)
    run_to_the_end(data, run, *shorter)
    taken = [line["loss"] for line in lines(run)]
    said = run_to_the_end(data, run, *longer, "--checkpoint-steps", 5, "--keep-checkpoints", 2)
    assert "The budget grows from 6 to 12 steps: the learning rate, 0 here before" in plain(said)
    assert [line["step"] for line in lines(run)] == [*range(1, 13)]
    assert [line["loss"] for line in lines(run)][:6] == taken
    config = TrainingConfig(steps=12, learning_rate=1e-3, warmup_steps=5)
    rates = [line["learning_rate"] for line in lines(run)][6:]
    assert rates == pytest.approx([config.rate(step, step / 12) for step in range(6, 12)])
    kept = sorted(int(path.stem.removeprefix("step-")) for path in (run / "checkpoints").iterdir())
    assert kept == [10, 12], "every fifth step, and the last"
    settings = json.loads((run / "run.json").read_text())
    assert (settings["training"]["steps"], settings["earlier_budgets"]) == (12, [{"steps": 6}])
    again = complaint(
        *(capsys, monkeypatch, "train", data, "--out", run, *OPTIONS, *longer),
        status=ALREADY_TRAINED,
    )
    assert "its budget is spent" in again
    shrunk = complaint(capsys, monkeypatch, "train", data, "--out", run, *OPTIONS, *shorter)
    assert "training.steps: 12 then, 6 now (a budget can grow" in shrunk


def test_a_kill_before_the_policy_was_written(
    data: Path, uninterrupted: Path, tmp_path: Path, capsys, monkeypatch
) -> None:
    run = tmp_path / "run"
    shutil.copytree(uninterrupted, run)
    shutil.rmtree(run / "policy")
    assert "its budget is spent" in complaint(
        capsys, monkeypatch, "train", data, "--out", run, *OPTIONS, status=ALREADY_TRAINED
    )
    assert weights(run) == weights(uninterrupted)


def test_a_kill_at_the_very_beginning(data: Path, uninterrupted: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    for name in ("lock", ".unfinished-run.json"):
        (tmp_path / "run" / name).write_text("")
    run_to_the_end(data, tmp_path / "run")
    assert losses(tmp_path / "run") == losses(uninterrupted)


def test_no_readable_checkpoint(
    data: Path, uninterrupted: Path, tmp_path: Path, capsys, monkeypatch
) -> None:
    run = tmp_path / "run"
    shutil.copytree(uninterrupted, run)
    for path in (run / "checkpoints").iterdir():
        path.write_bytes(path.read_bytes()[:100])
    for _ in range(2):  # asked again, it must not begin anew
        with pytest.warns(UserWarning, match="cannot be read"):
            assert "no checkpoint in" in complaint(
                capsys, monkeypatch, "train", data, "--out", run, *OPTIONS
            )


def test_decision_loss_survives_parts_and_windows(data: Path, tmp_path: Path) -> None:
    run_to_the_end(data, tmp_path / "run", "--accumulate", 2, "--window", 4, "--log-steps", 10)
    assert all(0 < line["decision_loss"] < 10 for line in lines(tmp_path / "run"))


def test_start_from_a_saved_policy(data: Path, uninterrupted: Path, tmp_path: Path) -> None:
    train_here(data, "--out", tmp_path / "tuned", *TRAINING, "--start-from", uninterrupted)
    assert lines(tmp_path / "tuned")[0]["loss"] < lines(uninterrupted)[0]["loss"]


def test_a_budget_in_minutes(data: Path, tmp_path: Path) -> None:
    options = ["--device", "cpu", "--minutes", 0.05, "--batch", 4, "--warmup-steps", 1]
    options += ["--log-steps", 1, "--log", "tensorboard"]
    train_here(data, "--out", tmp_path / "run", *NEW_POLICY, *options)
    rates = [line["learning_rate"] for line in lines(tmp_path / "run")]
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] < 0.2 * rates[0]
    assert list((tmp_path / "run/tensorboard").iterdir())


def test_settings_that_were_added_or_removed_and_are_off_are_no_difference() -> None:
    then = {"mirror": False, "training": {"steps": 5, "seed": 0}}
    assert (
        differences(then, {"training": {"steps": 5, "seed": 0, "tint": 0.0, "mirror": False}}) == []
    )
    assert differences(then, {"training": {"steps": 5, "seed": 0, "tint": 0.1}}) == [
        ("training.tint", None, 0.1)
    ]
    assert differences({"mirror": True}, {}) == [("mirror", True, None)]


def test_a_run_goes_on_with_or_without_kernels_but_not_with_another_limit(tmp_path: Path) -> None:
    def settings(limit: float | None, *, fused: bool) -> dict:
        return {
            "policy": {"fast": {"half_life_limit": limit}},
            "training": {"seed": 0, "fused": fused},
        }

    write_settings(tmp_path, settings(None, fused=True))
    write_settings(tmp_path, settings(None, fused=False))
    with pytest.raises(FileExistsError, match=r"None then, 16.0 now \(add --half-life-limit inf\)"):
        write_settings(tmp_path, settings(16.0, fused=True))


@pytest.mark.parametrize(("limit", "found"), [(None, 16.0), (24.0, 24.0), (math.inf, None)])
def test_the_limit_of_a_run(data: Path, limit: float | None, found: float | None) -> None:
    episodes = open_datasets((data,))
    arrays = load_episodes(episodes)
    config = RunConfig(
        data=(data,),
        preset="nano",
        horizon=4,
        half_life_limit=limit,
        training=TrainingConfig(steps=1),
    )
    assert build_policy(config, episodes, arrays).config.fast.half_life_limit == found
    if limit is not None:
        with pytest.raises(
            ValueError, match="lstm has no state-space layer to limit; leave out --half-life-limit"
        ):
            build_policy(replace(config, method="lstm"), episodes, arrays)
