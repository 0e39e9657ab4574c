"""`chameleon run` with a server: it acts like an evaluation, and errors end it properly."""

from __future__ import annotations

import json
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from chameleon_client import Client, ConnectionLost, Session
from chameleon_policy.camo.settings import CamoSettings
from chameleon_policy.cli import main
from chameleon_policy.data import RecordedDataset
from chameleon_policy.evaluate.rollouts import roll_out
from chameleon_policy.policy import ChameleonPolicy, Features, ObjectSlots, preset
from chameleon_policy.robot.camo_sim import CamoSim
from chameleon_policy.robot.limits import Limits
from chameleon_policy.robot.recording import RobotRecording
from chameleon_policy.robot.run import camo_settings, run_episodes
from chameleon_policy.robot.settings import LoopSettings
from chameleon_policy.seeds import evaluation_seed
from chameleon_policy.serve import ServerSettings, running_server
from robot_doubles import PoolWithoutDecisions
from serving_examples import health

SETTINGS = CamoSettings(task="clean-plate", observation="state")
SEED = evaluation_seed(11)


@pytest.fixture(scope="module")
def policy() -> ChameleonPolicy:
    with SETTINGS.make_env() as env:
        count, size = env.observation_space["objects"].shape  # type: ignore[index, misc]
    features = Features(
        objects=ObjectSlots(count=count, size=size), proprioception=10, action=10, horizon=4
    )
    return ChameleonPolicy(preset("nano"), features, with_control_jepa=False).eval()


@pytest.fixture(scope="module")
def url(policy: ChameleonPolicy) -> Iterator[str]:
    with running_server(policy, ServerSettings(port=0)) as address:
        yield address


def test_with_patience_the_actions_are_those_of_rollouts(policy: ChameleonPolicy, url: str) -> None:
    """Two episodes have the actions, to the last bit, and the scores of rollouts without a server.

    Robots know of no decisions: in the rollouts, too, chunks are carried out over them.
    """
    with PoolWithoutDecisions(SETTINGS, 1, 0) as pool:
        expected = roll_out(policy, pool, [SEED, SEED + 1], steps=2)
    loop = LoopSettings(rate=1000, executed=2, blend=0, steps=2, patience=60, timeout=60)
    with Client(url) as client:
        assert camo_settings(client.metadata, "clean-plate") == SETTINGS
        robot = CamoSim(SETTINGS, SEED)
        run = run_episodes(robot, client, loop, Limits.none(10), episodes=2, first_seed=SEED)
        robot.close()
    assert run.stopped is None and run.evaluation is not None
    for rollout, other in zip(run.evaluation.rollouts, expected, strict=True):
        np.testing.assert_array_equal(rollout.actions, other.actions)
        assert rollout.played == other.played
    assert [timings.missed_memory for timings in run.timings] == [0, 0]


def command(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    """Run `chameleon run` in this process and return its exit status."""
    monkeypatch.setattr(sys, "argv", ["chameleon", "run", *map(str, words)])
    try:
        main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def test_the_command_plays_records_and_reports(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, scores = tmp_path / "data", tmp_path / "run.json"
    words = ("--server", url, "--task", "clean-plate", "--rate", 200, "--steps", 1, "--timeout", 60)
    assert (
        command(monkeypatch, *words, "--record", out, "--json", scores, "--first-seed", SEED) == 0
    )
    written = json.loads(scores.read_text())
    result = written["result"]
    assert written["seeds"] == [SEED] and result["policy"] and result["loop"]["missed_memory"] == 0
    dataset = RecordedDataset(out)
    (rollout,) = result["scores"]["rollouts"]
    assert len(dataset.vectors(0)["action"]) == rollout["control_steps"] == result["loop"]["ticks"]
    assert dataset.schema.fps == 7.5  # the simulation's time, however fast it was run
    printed = capsys.readouterr().out
    assert "observation until the memory has it" in printed and "0 not in the memory" in " ".join(
        printed.split()
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--task", "shell-game"), "object slots"),
        ((), "give --task"),
        (
            ("--robot", "ur5", "--rate", "30", "--seconds", "5"),
            "--robot must be camo-sim or lerobot:FILE, got 'ur5'",
        ),
        (
            ("--robot", "lerobot:no.json", "--rate", "30", "--seconds", "5"),
            "there is no robot configuration no.json",
        ),
        (("--task", "clean-plate", "--rate", "0"), "--rate must be"),
        (("--task", "clean-plate", "--first-seed", "3"), "not evaluation seeds"),
        (("--task", "clean-plate", "--episodes", "0"), "--episodes must be at least 1"),
        (("--task", "clean-plate", "--limits", "none.json"), "none.json"),
        (("--task", "clean-plate", "--executed", "5"), "--executed must be at most 4"),
        (
            ("--task", "clean-plate", "--steps", "500"),
            "steps: expected a whole number from 1 to 100",
        ),
        (("--task", "clean-plate", "--instruction", "wipe"), "leave out --instruction"),
        (("--robot", "lerobot:arm.json", "--seconds", "5"), "--rate: give the ticks per second"),
        (("--robot", "lerobot:arm.json", "--rate", "30"), "--seconds: a robot does not know"),
        (
            (
                "--robot",
                "lerobot:arm.json",
                "--rate",
                "30",
                "--seconds",
                "5",
                "--task",
                "shell-game",
            ),
            "leave out --task",
        ),
    ],
)
def test_wrong_options_are_reported(
    words: tuple[str, ...],
    message: str,
    url: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert command(monkeypatch, "--server", url, *words) == 2
    assert message in capsys.readouterr().err


def test_a_missing_server_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(monkeypatch, "--server", "ws://127.0.0.1:9", "--task", "clean-plate") == 2
    assert "is the server running (`chameleon serve RUN`)?" in capsys.readouterr().err
    assert command(monkeypatch, "--server", "127.0.0.1:8765", "--task", "clean-plate") == 2
    assert "expected an address such as ws://127.0.0.1:8765" in capsys.readouterr().err


def test_ctrl_c_stops_the_robot_and_keeps_the_recording(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    step, ticks = CamoSim.send, []

    def send(robot: CamoSim, action: np.ndarray) -> None:
        ticks.append(action)
        if len(ticks) == 7:
            signal.raise_signal(signal.SIGINT)
        step(robot, action)

    monkeypatch.setattr(CamoSim, "send", send)
    words = (
        "--server",
        url,
        "--task",
        "clean-plate",
        "--rate",
        50,
        "--steps",
        1,
        "--timeout",
        60,
        "--episodes",
        3,
    )
    assert command(monkeypatch, *words, "--record", tmp_path / "data") == 130
    assert "the robot was stopped after 7 ticks: interrupted" in capsys.readouterr().err
    assert len(RecordedDataset(tmp_path / "data").vectors(0)["action"]) == 7


def test_a_stopped_server_ends_the_run_and_keeps_the_recording(
    policy: ChameleonPolicy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ticks, step, server = 0, CamoSim.send, ExitStack()
    address = server.enter_context(running_server(policy, ServerSettings(port=0)))

    def send(robot: CamoSim, action: np.ndarray) -> None:
        nonlocal ticks
        ticks += 1
        if ticks == 5:
            server.close()
        step(robot, action)

    monkeypatch.setattr(CamoSim, "send", send)
    words = ("--task", "clean-plate", "--rate", 50, "--steps", 1, "--timeout", 60)
    words = (*words, "--record", tmp_path / "data")
    assert command(monkeypatch, "--server", address, *words) == 2
    error = capsys.readouterr().err
    assert "the robot was stopped after" in error and "ConnectionLost" in error
    assert 5 <= len(RecordedDataset(tmp_path / "data").vectors(0)["action"]) < 60


def test_a_killed_run_goes_on_with_the_same_command(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, scores = tmp_path / "data", tmp_path / "run.json"
    words = (
        "--server",
        url,
        "--task",
        "clean-plate",
        "--rate",
        1000,
        "--steps",
        1,
        "--timeout",
        60,
    )
    words = (*words, "--first-seed", SEED, "--record", out, "--json", scores)
    with monkeypatch.context() as patch:  # killed after the first episode
        patch.setattr(RobotRecording, "finish", lambda recording: recording.release() or 0)
        assert command(patch, *words) == 0
    first = len(json.loads(scores.read_text())["result"]["scores"]["rollouts"])
    assert first == 1 and not (out / "meta").exists()
    assert command(monkeypatch, *words, "--episodes", 2) == 0
    assert "holds 1 episodes of a run that was broken off" in " ".join(
        capsys.readouterr().out.split()
    )
    assert json.loads(scores.read_text())["seeds"] == [SEED + 1]
    assert RecordedDataset(out).vectors(1)["action"].shape[1] == 10


def cut_at(monkeypatch: pytest.MonkeyPatch, tick: int, cut: Callable[[], object]) -> None:
    """Call `cut` in a tick of the simulated robot."""
    step, sent = CamoSim.send, []

    def send(robot: CamoSim, action: np.ndarray) -> None:
        sent.append(action)
        if len(sent) == tick:
            cut()
        step(robot, action)

    monkeypatch.setattr(CamoSim, "send", send)


def test_an_episode_goes_on_after_a_lost_connection(
    policy: ChameleonPolicy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = LoopSettings(rate=100, executed=2, steps=1, patience=60, timeout=60, seconds=0.3)
    robot = CamoSim(SETTINGS, SEED)
    with running_server(policy, ServerSettings(port=0)) as url, Client(url) as client:
        recording = RobotRecording(tmp_path / "data", robot, rate=100)
        cut_at(monkeypatch, 7, lambda: client._socket.socket.shutdown(socket.SHUT_RDWR))
        run = run_episodes(
            robot,
            client,
            loop,
            Limits.none(10),
            episodes=1,
            first_seed=SEED,
            recording=recording,
            reconnect=60,
        )
        served = health(url)
    robot.close()
    assert run.stopped is None and run.broken_off == 0
    (timings,) = run.timings
    assert timings.ticks == 30 and timings.missed_memory == 0
    # two of the warm-up, every tick once, and at most one more in which the robot stood still
    assert 32 <= served["ticks"] <= 33
    assert recording.finish() == 1
    assert len(RecordedDataset(tmp_path / "data").vectors(0)["action"]) == 30


def test_the_next_episode_begins_when_the_memory_is_gone(
    policy: ChameleonPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = LoopSettings(rate=100, executed=2, steps=1, patience=60, timeout=60, seconds=0.2)
    robot, servers = CamoSim(SETTINGS, SEED), ExitStack()
    first = ExitStack()
    url = first.enter_context(running_server(policy, ServerSettings(port=0)))

    def restart() -> None:
        first.close()
        settings = ServerSettings(port=int(url.rpartition(":")[2]))
        servers.enter_context(running_server(policy, settings))

    with servers, Client(url) as client:
        cut_at(monkeypatch, 7, restart)
        run = run_episodes(
            robot, client, loop, Limits.none(10), episodes=2, first_seed=SEED, reconnect=60
        )
    robot.close()
    assert run.stopped is None and run.broken_off == 1
    assert 7 <= run.timings[0].ticks < 20 and run.timings[1].ticks == 20


def test_an_episode_is_recorded_when_its_session_cannot_be_closed(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    robot, closed, close = CamoSim(SETTINGS, SEED), [], Session.close

    def fail_after_warm_up(session: Session) -> None:
        closed.append(session.name)
        if len(closed) > 1:
            raise ConnectionLost("the server is gone")
        close(session)

    monkeypatch.setattr(Session, "close", fail_after_warm_up)
    recording = RobotRecording(tmp_path / "data", robot, rate=50)
    loop = LoopSettings(rate=50, executed=2, steps=1, timeout=60, seconds=0.1)
    with Client(url) as client, pytest.raises(ConnectionLost):
        run_episodes(
            robot, client, loop, Limits.none(10), episodes=1, first_seed=SEED, recording=recording
        )
    robot.close()
    assert recording.finish() == 1
