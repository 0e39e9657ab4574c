"""The robot loop keeps its rate, never leaves out a tick of the memory, and stops when it must."""

from __future__ import annotations

import json
from concurrent.futures import Future
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chameleon_client import ServerError
from chameleon_policy.camo.settings import CamoSettings
from chameleon_policy.data import RecordedDataset
from chameleon_policy.data.resizing import resized
from chameleon_policy.evaluate.rollouts import roll_out
from chameleon_policy.policy import ChameleonPolicy, Features, ObjectSlots, preset
from chameleon_policy.robot.camo_sim import CamoSim
from chameleon_policy.robot.clock import Clock
from chameleon_policy.robot.latency import summarise_timings
from chameleon_policy.robot.lerobot_robot import LeRobotRobot
from chameleon_policy.robot.limits import Limits
from chameleon_policy.robot.loop import EpisodeReport, play
from chameleon_policy.robot.plan import Plan
from chameleon_policy.robot.recording import RobotRecording
from chameleon_policy.robot.robot import RobotObservation
from chameleon_policy.robot.run import check_fit
from chameleon_policy.robot.settings import LoopSettings
from chameleon_policy.seeds import evaluation_seed
from robot_doubles import LateSession, LocalSession, PoolWithoutDecisions, ToyRobot, done

FAST = LoopSettings(rate=1000, executed=4, blend=0)


class FakeTime:
    """A clock that advances only by `sleep` and by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


# Pictures


def test_larger_pictures_are_scaled_as_in_training() -> None:
    rng = np.random.default_rng(0)
    large, small = (
        rng.integers(256, size=(*size, 3), dtype=np.uint8) for size in ((48, 64), (18, 24))
    )
    seen = RobotObservation(proprioception=np.zeros(2), images={"third": large, "wrist": small})
    sent = seen.arrays({"third": (18, 24), "wrist": (18, 24)})["images"]
    np.testing.assert_array_equal(sent["third"], resized(large, (18, 24)))
    assert sent["wrist"] is small and seen.images["third"] is large


@pytest.mark.parametrize(
    ("camera", "view", "fits"),
    [
        ((480, 640), (480, 640), True),
        ((480, 640), (168, 224), True),
        ((720, 1280), (126, 224), True),
        ((480, 480), (168, 224), False),
        ((480, 640), (224, 168), False),
        ((120, 160), (168, 224), False),
    ],
)
def test_a_camera_fits_a_view_of_its_size_or_a_smaller_one_of_its_shape(
    camera: tuple[int, int], view: tuple[int, int], fits: bool
) -> None:
    robot = SimpleNamespace(
        name="arm", state_names="xy", action_names="xy", cameras={"third": (*camera, 3)}
    )
    metadata = SimpleNamespace(policy="p", proprioception=2, action=2, views={"third": view})
    with (
        nullcontext() if fits else pytest.raises(ValueError, match="larger ones of the same shape")
    ):
        check_fit(robot, metadata)


# The clock


def test_ticks_come_at_their_times_and_missed_ones_are_not_repeated() -> None:
    time = FakeTime()
    clock = Clock(10, now=time, sleep=time.sleep)
    began = []
    for work in (0.0, 0.05, 0.13, 0.0, 0.31, 0.0, 0.0):
        began.append(clock.tick() - 100.0)
        time.now += work
    # The third tick's work ends 30 ms late; the fifth's lasts three periods, in which two ticks do
    # not happen.
    assert began == pytest.approx([0.0, 0.1, 0.2, 0.33, 0.4, 0.71, 0.8])
    assert clock.missed == 2
    assert clock.lateness == pytest.approx([0, 0, 0, 0.03, 0, 0.21, 0], abs=1e-9)


@pytest.mark.parametrize("rate", [0, -1, float("nan"), 5000])
def test_a_wrong_rate_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="--rate must be"):
        Clock(rate)


# The plan


def test_actions_of_a_late_chunk_that_have_passed_are_skipped() -> None:
    plan = Plan(executed=2, blend=0)
    plan.add(np.arange(10.0).reshape(5, 2), requested=3, now=5)
    assert plan.at(4) is None and plan.at(8) is None
    assert [plan.at(tick)[0].tolist() for tick in (5, 6, 7)] == [[4, 5], [6, 7], [8, 9]]  # type: ignore[index]


def test_a_new_chunk_takes_over_in_equal_steps() -> None:
    plan = Plan(executed=4, blend=3)
    plan.add(np.zeros((8, 1)), requested=0, now=0)
    plan.add(np.full((8, 1), 4.0), requested=4, now=4)
    assert [float(plan.at(tick)[0][0]) for tick in range(4, 12)] == [1, 2, 3, 4, 4, 4, 4, 4]  # type: ignore[index]
    assert plan.at(4)[1] == 4  # type: ignore[index]


def test_a_chunk_is_due_after_the_executed_actions() -> None:
    plan = Plan(executed=3, blend=0)
    assert plan.due(0)
    plan.note_request(0)
    assert [plan.due(tick) for tick in range(1, 5)] == [False, False, True, True]


# The limits

NUMBERS = st.floats(-10, 10, width=32)


@given(
    action=NUMBERS,
    before=NUMBERS,
    low=st.floats(-5, 0),
    high=st.floats(0, 5),
    speed=st.floats(0.1, 5),
)
def test_sent_actions_are_never_too_fast_and_never_further_outside(
    action: float, before: float, low: float, high: float, speed: float
) -> None:
    limits = Limits(low=(low,), high=(high,), per_second=(speed,))
    (sent,), changed = limits.apply(np.array([action]), np.array([before], np.float32), 0.5)
    assert abs(sent - before) <= speed * 0.5 + 1e-5
    outside = max(low - before, 0, before - high)
    assert max(low - sent, 0, sent - high) <= outside + 1e-5
    nearest = min(max(action, low), high)
    expected = min(max(nearest, before - speed * 0.5), before + speed * 0.5)
    assert sent == pytest.approx(expected, abs=1e-5)
    assert changed == (abs(expected - action) > 1e-6) or abs(expected - action) < 1e-5


def test_limits_are_read_from_a_file_and_wrong_ones_are_refused(tmp_path: Path) -> None:
    path, names, default = tmp_path / "limits.json", ("x", "y"), Limits.none(2)
    path.write_text(json.dumps({"y": {"low": 0, "high": 1, "per_second": 0.5}}))
    read = Limits.read(path, names, default)
    assert (read.low[1], read.high[1], read.per_second) == (0, 1, (float("inf"), 0.5))
    for text, message in [
        ("{", "not valid JSON"),
        ("[1]", "expected"),
        ('{"z": {}}', "there is no z in an action; it has x, y"),
        ('{"x": {"speed": 1}}', "x has speed; expected low, high or per_second"),
        ('{"x": {"low": "a"}}', "x.low must be a number"),
        ('{"x": {"low": 2, "high": 1}}', "low must not be above high"),
        ('{"x": {"per_second": 0}}', "expected more than 0"),
    ]:
        path.write_text(text)
        with pytest.raises(ValueError, match=message):
            Limits.read(path, names, default)


# The loop


@pytest.mark.parametrize("delay", [0, 1, 3, 6])
def test_the_memory_gets_every_tick_however_late_chunks_are(delay: int) -> None:
    robot, session = ToyRobot(40), LateSession(delay)
    episode = play(robot, session, FAST, Limits.none(2))
    assert session.ticks == len(robot.sent) == 40 and episode.timings.missed_memory == 0
    assert session.asked[:2] == ([0, 4] if delay < 4 else [0, delay])
    numbers = [int(action[0]) for action in robot.sent]
    # Chunk n consists of the number n and counts from the tick at which it arrived.
    expected = [
        max((n for n, asked in enumerate(session.asked) if asked + delay <= tick), default=0)
        for tick in range(40)
    ]
    assert numbers == expected
    planned = {
        tick for asked in session.asked for tick in range(asked + delay, asked + session.horizon)
    }
    assert episode.timings.idle == len(set(range(delay, 40)) - planned) and (
        episode.timings.idle > 0
    ) == (delay == 6)


def test_without_a_new_chunk_the_robot_holds_still() -> None:
    robot, session = ToyRobot(30), LateSession(0)
    first = session.act_soon
    session.act_soon = lambda steps=None: first(steps=steps) if len(session.asked) < 1 else Future()  # type: ignore[method-assign]
    episode = play(robot, session, FAST, Limits.none(2))
    assert episode.timings.idle == 30 - 8  # one chunk of eight
    assert len({tuple(action) for action in robot.sent}) == 1


def test_with_patience_the_actions_are_those_of_a_rollout() -> None:
    """The same actions as a rollout in one process, to the last bit, with the same seed and noise.

    Robots know of no decisions: in the rollout, too, chunks are carried out over them.
    """
    settings = CamoSettings(task="clean-plate", observation="state")
    with settings.make_env() as env:
        slots = env.observation_space["objects"].shape  # type: ignore[index]
    features = Features(
        objects=ObjectSlots(count=slots[0], size=slots[1]), proprioception=10, action=10, horizon=4
    )
    policy = ChameleonPolicy(preset("nano"), features, with_control_jepa=False).eval()
    seed = evaluation_seed(3)
    with PoolWithoutDecisions(settings, 1, 0) as pool:
        expected = roll_out(policy, pool, [seed], steps=2)[0]
    robot = CamoSim(settings, seed)
    robot.begin(0)
    loop = LoopSettings(rate=1000, executed=2, blend=0, steps=2, patience=60, timeout=60)
    episode = play(robot, LocalSession(policy, seed), loop, Limits.none(10))
    assert episode.stopped is None
    np.testing.assert_array_equal(np.stack(episode.actions), expected.actions)
    assert robot.played == expected.played
    robot.close()


def test_a_lost_connection_stops_the_robot() -> None:
    robot, session = ToyRobot(40), LateSession(0)
    alive = session.observe_soon

    def observe_soon(**arrays: Any) -> Future[int]:
        if session.ticks < 7:
            return alive(**arrays)
        broken: Future[int] = Future()
        broken.set_exception(ConnectionError("the server is gone"))
        return broken

    session.observe_soon = observe_soon  # type: ignore[method-assign]
    episode = play(robot, session, FAST, Limits.none(2))
    assert robot.stopped == 1 and episode.stopped == "ConnectionError: the server is gone"
    assert 7 <= len(robot.sent) <= 8 and episode.timings.missed_memory >= 1


def test_a_silent_server_stops_the_robot() -> None:
    robot, session = ToyRobot(10_000), LateSession(0)
    session.observe_soon = lambda **arrays: Future()  # type: ignore[method-assign]
    episode = play(robot, session, LoopSettings(rate=200, executed=4, timeout=0.05), Limits.none(2))
    assert robot.stopped == 1 and "has not taken in an observation for 0.05 s" in str(
        episode.stopped
    )
    assert len(robot.sent) < 100


def test_actions_that_are_not_finite_stop_the_robot() -> None:
    robot, session = ToyRobot(10), LateSession(0)
    session.act_soon = lambda steps=None: done(np.full((8, 2), np.nan, np.float32))  # type: ignore[method-assign]
    episode = play(robot, session, FAST, Limits.none(2))
    assert (
        robot.stopped == 1 and not robot.sent and "expected finite numbers" in str(episode.stopped)
    )


def test_a_place_that_is_not_finite_is_never_sent() -> None:
    """A broken sensor: holding still would send its NaN, and so would limits of speed."""
    robot = ToyRobot(10)
    robot.hold = lambda: np.array([0, np.nan], np.float32)  # type: ignore[method-assign]
    slow = Limits(low=(-9, -9), high=(9, 9), per_second=(1, 1))
    for delay in (0, 3):  # with a plan at once, and holding still first
        robot.begin(0)
        episode = play(robot, LateSession(delay), FAST, slow)
        assert not robot.sent and "not finite" in str(episode.stopped)
    assert robot.stopped == 2


def test_an_error_in_place_of_a_chunk_stops_the_robot() -> None:
    robot, session = ToyRobot(10), LateSession(0)
    refused: Future[Any] = Future()
    refused.set_exception(ServerError("not-finite", "act: the policy planned NaN"))
    session.act_soon = lambda steps=None: refused  # type: ignore[method-assign]
    episode = play(robot, session, FAST, Limits.none(2))
    assert robot.stopped == 1 and not robot.sent and "[not-finite]" in str(episode.stopped)


def test_an_error_of_the_robot_stops_it_and_the_episode_is_kept() -> None:
    robot = ToyRobot(10)
    seen = robot.observe
    robot.observe = lambda: seen() if len(robot.sent) < 3 else 1 / 0  # type: ignore[method-assign, assignment, return-value]
    episode = play(robot, LateSession(0), FAST, Limits.none(2))
    assert (
        robot.stopped == 1
        and isinstance(episode.error, ZeroDivisionError)
        and len(episode.actions) == 3
    )
    robot = ToyRobot(10)
    robot.observe = robot.stop = lambda: 1 / 0  # type: ignore[method-assign, assignment, return-value]
    episode = play(robot, LateSession(0), FAST, Limits.none(2))
    assert "could not be stopped" in episode.error.__notes__[0]  # type: ignore[union-attr]


def test_the_robot_is_stopped_on_request_between_two_ticks() -> None:
    robot = ToyRobot(100)
    episode = play(
        robot, LateSession(0), FAST, Limits.none(2), interrupted=lambda: len(robot.sent) == 6
    )
    assert robot.stopped == 1 and episode.interrupted and len(episode.actions) == 6


def test_observations_are_kept_only_for_a_recording() -> None:
    episode = play(ToyRobot(20), LateSession(0), FAST, Limits.none(2), keep_observations=False)
    assert (
        not episode.observations
        and len(episode.actions) == 20
        and episode.timings.missed_memory == 0
    )


def test_an_episode_ends_after_its_seconds() -> None:
    robot = ToyRobot(10_000)
    play(robot, LateSession(0), LoopSettings(rate=500, executed=4, seconds=0.1), Limits.none(2))
    assert len(robot.sent) == 50


@pytest.mark.parametrize(
    "wrong", [{"patience": -1}, {"timeout": 0}, {"seconds": 0}, {"executed": 0}, {"blend": -1}]
)
def test_wrong_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="at least"):
        LoopSettings(**{"rate": 10, "executed": 4, **wrong})


# Recordings and reports


def test_episodes_are_recorded_as_a_dataset(tmp_path: Path) -> None:
    robot = ToyRobot(12)
    recording = RobotRecording(tmp_path / "data", robot, 10)
    episodes = []
    for length in (12, 7):
        robot.length = length
        robot.begin(0)
        episodes.append(play(robot, LateSession(1), FAST, Limits.none(2)))
        recording.add(episodes[-1])
    assert recording.finish() == 2
    dataset = RecordedDataset(tmp_path / "data")
    assert dataset.schema.fps == 10 and dataset.schema.vectors["action"] == ("x", "y")
    for index, episode in enumerate(episodes):
        np.testing.assert_array_equal(dataset.vectors(index)["action"], np.stack(episode.actions))
        states = np.stack([each.proprioception for each in episode.observations])
        np.testing.assert_array_equal(dataset.vectors(index)["observation.state"], states)
        shown = dataset.frames(index, "front").mean(axis=(1, 2, 3))
        assert np.abs(shown - np.arange(len(shown))).max() < 3
    with pytest.raises(FileExistsError, match="finished recording; choose another --record"):
        RobotRecording(tmp_path / "data", robot, 10)


def recorded_episode(robot: ToyRobot, length: int) -> EpisodeReport:
    robot.length = length
    robot.begin(0)
    return play(robot, LateSession(1), FAST, Limits.none(2))


def test_a_killed_recording_goes_on_with_what_was_finished(tmp_path: Path) -> None:
    """A process that is killed never comes to `finish`; the lock goes with it."""
    robot, out = ToyRobot(12), tmp_path / "data"
    episodes = [recorded_episode(robot, length) for length in (12, 7, 5)]
    killed = RobotRecording(out, robot, 10)
    assert killed.found == 0
    for episode in episodes[:2]:
        killed.add(episode)
    with pytest.raises(FileExistsError, match="another process is recording into"):
        RobotRecording(out, robot, 10)
    killed.release()
    (out / "meta").mkdir()  # it was killed while it put the dataset together
    for other, name in ((ToyRobot(12), "rate"), (ToyRobot(12), "x")):
        other.action_names = ("x", "y") if name == "rate" else ("a", "b")
        with pytest.raises(ValueError, match=r"2 episodes of .* choose another --record"):
            RobotRecording(out, other, 20 if name == "rate" else 10)
    again = RobotRecording(out, robot, 10)
    assert again.found == 2
    again.add(episodes[2])
    assert again.finish() == 3 and not (out / "unfinished").exists()
    dataset = RecordedDataset(out)
    for index, episode in enumerate(episodes):
        np.testing.assert_array_equal(dataset.vectors(index)["action"], np.stack(episode.actions))


def test_a_killed_recording_is_put_together_without_a_further_episode(tmp_path: Path) -> None:
    robot = ToyRobot(12)
    killed = RobotRecording(tmp_path / "data", robot, 10)
    killed.add(recorded_episode(robot, 12))
    killed.release()
    assert RobotRecording(tmp_path / "data", robot, 10).finish() == 1
    assert len(RecordedDataset(tmp_path / "data").vectors(0)["action"]) == 12


def test_a_folder_with_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="holds no unfinished recording; choose another"):
        RobotRecording(tmp_path, ToyRobot(1), 10)
    assert (tmp_path / "notes.txt").read_text() == "mine"
    recording = RobotRecording(tmp_path / "new", ToyRobot(1), 10)
    assert recording.finish() == 0 and not (tmp_path / "new").exists()


def test_the_report_counts_ticks_and_orders_percentiles() -> None:
    episodes = [
        play(
            ToyRobot(20),
            LateSession(1),
            FAST,
            Limits(low=(0, 0), high=(1, 9), per_second=(9e9, 9e9)),
        )
        for _ in range(2)
    ]
    summary = summarise_timings([episode.timings for episode in episodes])
    assert summary["ticks"] == 40 and summary["missed_memory"] == 0
    # From chunk 2 on the first number is above its limit: ticks 9 to 19, twice.
    assert summary["limited"] == 2 * 11
    assert summary["observe_ms"]["count"] == 40 and summary["chunk_ms"]["count"] == 10
    for name in ("lateness_ms", "observe_ms", "chunk_ms", "end_to_end_ms"):
        assert 0 <= summary[name]["p50"] <= summary[name]["p99"] <= summary[name]["max"]


class FakeArm:
    """A robot with the interface of LeRobot: named numbers and images."""

    name = "fake_arm"
    observation_features: ClassVar = {
        "a.pos": float,
        "b.pos": float,
        "temperature": float,
        "front": (8, 8, 3),
    }
    action_features = {"a.pos": float, "b.pos": float}  # noqa: RUF012

    def __init__(self) -> None:
        self.place = {"a.pos": 1.0, "b.pos": 2.0}
        self.connected = False

    def connect(self) -> None:
        self.connected = True

    def disconnect(self) -> None:
        self.connected = False

    def get_observation(self) -> dict[str, Any]:
        return {**self.place, "temperature": 30.0, "front": np.zeros((8, 8, 3), np.uint8)}

    def send_action(self, action: dict[str, float]) -> None:
        assert self.connected
        self.place = dict(action)


def test_a_robot_of_lerobot_moves_and_stops_where_it_is() -> None:
    arm = FakeArm()
    robot = LeRobotRobot(arm, "move")
    assert robot.state_names == ("a.pos", "b.pos", "temperature") and robot.action_names == (
        "a.pos",
        "b.pos",
    )
    robot.begin(0)
    assert robot.observe().proprioception.tolist() == [1, 2, 30] and robot.hold().tolist() == [1, 2]
    episode = play(
        robot,
        LateSession(0),
        LoopSettings(rate=500, executed=4, seconds=0.02, blend=0),
        Limits.none(2),
    )
    assert len(episode.actions) == 10 and arm.place == {"a.pos": 2, "b.pos": 2}  # the third chunk
    arm.place = {"a.pos": 5.0, "b.pos": 6.0}
    robot.stop()
    assert robot.hold().tolist() == [5, 6]
    arm.get_observation = lambda: 1 / 0  # type: ignore[method-assign, assignment, return-value]
    arm.place = {}
    with pytest.raises(ZeroDivisionError):
        robot.stop()  # a camera fails: the arm must hold still all the same
    assert arm.place == {"a.pos": 5, "b.pos": 6}


def test_a_robot_of_lerobot_with_a_broken_sensor_is_not_sent_to_its_reading() -> None:
    arm = FakeArm()
    robot = LeRobotRobot(arm, "move")
    arm.connect()
    robot.begin(0)
    robot.send(np.array([3.0, 4.0], np.float32))
    arm.get_observation = lambda: {"a.pos": np.nan, "b.pos": 7.0, "temperature": 30.0}  # type: ignore[method-assign]
    robot.stop()
    assert arm.place == {"a.pos": 3, "b.pos": 4}  # the last action
    robot.close()
    assert not arm.connected
