"""Scores of hand-written logs, and intervals against their definition."""

from __future__ import annotations

import json
import math

import pytest

from camo_episodes import TASK_NAMES
from chameleon_policy.camo import CamoEnv, Score, score, summarise, task_named
from chameleon_policy.camo.events import Event
from chameleon_policy.camo.experts import make_expert
from chameleon_policy.rates import Rate
from chameleon_policy.seeds import (
    EVALUATION_SEEDS,
    TRAINING_SEEDS,
    evaluation_seed,
    recording_seed,
    refuse_training_seeds,
    stream,
)


def log(*entries: str) -> list[Event]:
    """Return events from strings like `kind object`, one per step."""
    return [Event(step, *entry.split()) for step, entry in enumerate(entries)]


LIFTED = ["touched cup_4", "raised cup_4", "lifted cup_4", "lowered cup_4", "returned cup_4"]
CASES = [
    ("shell-game", ["decision", "touched cup_1", "raised cup_1", "lifted cup_1"], 1, ""),
    ("shell-game", ["decision", "raised cup_1", "raised cup_2", "lifted cup_2"], None, "two cups"),
    (
        "shell-game",
        ["decision", "touched cup_1", "raised cup_1", "lowered cup_1", "lifted cup_1"],
        None,
        "set down",
    ),
    ("shell-game", ["decision", "lifted cup_1", "toppled cup_2"], None, "toppled: cup_2"),
    (
        "shell-game",
        ["decision", "touched cup_0", "raised cup_0", "dropped cup_0", "timeout"],
        None,
        "dropped: cup_0",
    ),
    (
        "shell-game",
        ["decision", "raised cup_0", "lifted cup_0", "dropped cup_0"],
        None,
        "dropped: cup_0",
    ),
    ("shell-game", ["decision", "touched cup_0", "timeout"], None, "timeout"),
    (
        "shell-game",
        ["decision", "touched cup_0", "raised cup_0", "lowered cup_0", "timeout"],
        None,
        "set down: cup_0",
    ),
    ("shell-game", ["decision", "timeout"], None, "no contact"),
    ("clean-plate", ["decision", "touched sponge", "raised sponge", "wiped plate_2"], 2, ""),
    (
        "clean-plate",
        ["decision", "touched sponge", "wiped plate_2", "moved plate_2"],
        None,
        "moved: plate_2",
    ),
    (
        "clean-plate",
        ["decision", "touched sponge", "wiped plate_2", "wiped plate_1"],
        None,
        "two plates",
    ),
    (
        "clean-plate",
        ["decision", "touched sponge", "wiped plate_0", "toppled plate_1"],
        None,
        "toppled: plate_1",
    ),
    (
        "clean-plate",
        ["decision", "touched sponge", "raised sponge", "dropped sponge", "timeout"],
        None,
        "dropped",
    ),
    (
        "clean-plate",
        ["decision", "raised sponge", "dropped sponge", "raised sponge", "wiped plate_0"],
        0,
        "",
    ),
    ("clean-plate", ["decision", "touched sponge", "timeout"], None, "timeout"),
    ("clean-plate", ["decision", "timeout"], None, "no contact"),
    (
        "seasonings",
        ["added shaker_2", "decision", "added shaker_2", "decision", "added shaker_0"],
        (2, 2, 0),
        "",
    ),
    (
        "seasonings",
        ["raised shaker_2", "raised shaker_0", "added shaker_2"],
        None,
        "two shakers before returning",
    ),
    ("seasonings", ["touched shaker_2", "added shaker_2", "timeout"], None, "timeout: 1 of 3"),
    (
        "seasonings",
        ["touched shaker_2", "raised shaker_2", "dropped shaker_2"],
        None,
        "dropped: shaker_2",
    ),
    (
        "seasonings",
        ["touched shaker_2", "raised shaker_2", "moved shaker_2"],
        None,
        "not put back: shaker_2",
    ),
    ("seasonings", ["moved shaker_2"], None, "pushed away: shaker_2"),
    ("seasonings", ["touched shaker_2", "toppled shaker_1"], None, "toppled: shaker_1"),
    ("seasonings", ["decision", "timeout"], None, "no contact"),
    ("pantry", ["decision", *LIFTED, "decision", "raised cup_2", "lifted cup_2"], (4, 2), ""),
    ("pantry", ["decision", *LIFTED, "decision", "raised cup_4", "lifted cup_4"], (4, 4), ""),
    ("pantry", ["decision", *LIFTED, "decision", "timeout"], None, "timeout: 1 of 2"),
    (
        "pantry",
        ["decision", *LIFTED, "decision", "raised cup_2", "lifted cup_2", "raised cup_3"],
        None,
        "two cups: cup_2, cup_3",
    ),
    (
        "pantry",
        ["decision", "touched cup_1", "raised cup_1", "lowered cup_1"],
        None,
        "set down: cup_1",
    ),
    ("pantry", ["decision", *LIFTED[:3], "moved cup_4"], None, "not put back: cup_4"),
    ("pantry", ["decision", "touched cup_1", "moved cup_1"], None, "pushed away: cup_1"),
    ("pantry", ["decision", *LIFTED[:3], "dropped cup_4"], None, "dropped: cup_4"),
    ("pantry", ["decision", "touched cup_1", "toppled cup_0"], None, "toppled: cup_0"),
    ("pantry", ["decision", "timeout"], None, "no contact"),
]


@pytest.mark.parametrize(("name", "entries", "choice", "reason"), CASES)
def test_verdicts(name: str, entries: list[str], choice: object, reason: str) -> None:
    task = task_named(name)()
    for z in task.answers:
        result = score(task, log(*entries), z)
        assert result.choice == choice
        assert result.manipulation == (choice is not None)
        assert result.decision == (choice is not None and choice == z)
        assert result.success == (result.manipulation and result.decision)
        expected = reason or ("success" if choice == z else "wrong choice")
        assert result.reason.startswith(expected)


def test_an_unstable_simulation_never_counts() -> None:
    task = task_named("shell-game")()
    assert score(task, log("lifted cup_1", "diverged"), 1).reason == "the simulation diverged"


@pytest.mark.parametrize("name", TASK_NAMES)
def test_the_environment_agrees_with_its_own_log(name: str) -> None:
    env = CamoEnv(name, observation="state")
    env.reset(seed=3)
    expert, over, info = make_expert(env), False, {}
    while not over:
        _, reward, terminated, truncated, info = env.step(expert.act().executed)
        over = terminated or truncated
        assert over or reward == 0.0
    copied = [Event(**json.loads(json.dumps(vars(event)))) for event in env.events]
    assert score(task_named(name)(), copied, env.z) == info["score"]
    assert reward == 1.0 and info["is_success"]


def test_failures_are_seen_in_the_simulation() -> None:
    """A dropped cup and a pushed plate are found in the simulation, too."""
    env = CamoEnv("shell-game", observation="state", retention_steps=0)
    env.reset(seed=6)
    expert = make_expert(env, noise=0.0)
    while not any(event.kind == "lifted" for event in env.events):
        env.step(expert.act().executed)
    over = False
    while not over:  # open the gripper in the air
        action = expert.act().executed
        action[9] = 1.0
        _, _, terminated, truncated, info = env.step(action)
        over = terminated or truncated
    assert (
        info["score"].reason.split(":")[0] in ("dropped", "toppled")
        and not info["score"].manipulation
    )

    env = CamoEnv("clean-plate", observation="state", retention_steps=0)
    env.reset(seed=6)
    expert = make_expert(env, noise=0.0)
    while not env.decisions:
        env.step(expert.act().executed)
    x, y, _ = env.world.position("plate_1")
    over = False
    for target in (
        [x - 0.14, y, 0.1],
        [x - 0.14, y, 0.015],
        *([x - 0.14 + 0.03 * k, y, 0.015] for k in range(1, 9)),
    ):
        for _ in range(3):
            if not over:
                _, _, terminated, truncated, info = env.step([*target, 1, 0, 0, 0, -1, 0, 0.0])
                over = terminated or truncated
    assert info["score"].reason.startswith("moved: plate_1")


def wilson_by_definition(successes: int, count: int) -> tuple[float, float]:
    """Return the ends of the set of p with (share - p)^2 <= z^2 p (1 - p) / n, by bisection."""
    share, z2 = successes / count, 1.959963984540054**2

    def inside(p: float) -> bool:
        return (share - p) ** 2 <= z2 * p * (1 - p) / count

    ends = []
    for outer in (0.0, 1.0):
        if inside(outer):
            ends.append(outer)
            continue
        a, b = outer, share
        if not inside(share):  # share 0 or 1: the set begins next to it
            b = share + (1e-9 if share == 0 else -1e-9)
        for _ in range(100):
            middle = (a + b) / 2
            a, b = (a, middle) if inside(middle) else (middle, b)
        ends.append((a + b) / 2)
    return ends[0], ends[1]


@pytest.mark.parametrize(
    ("successes", "count"), [(0, 36), (1, 36), (18, 36), (35, 36), (36, 36), (8, 10), (190, 200)]
)
def test_wilson_interval(successes: int, count: int) -> None:
    rate = Rate.of(successes, count)
    low, high = wilson_by_definition(successes, count)
    assert rate.value == successes / count
    assert rate.low == pytest.approx(low, abs=1e-8)
    assert rate.high == pytest.approx(high, abs=1e-8)


def test_summary_separates_execution_from_memory() -> None:
    scores = [Score(True, True, 0, "success")] * 6 + [Score(True, False, 1, "wrong choice")] * 2
    scores += [Score(False, False, None, "toppled: cup_1")] * 2
    summary = summarise(scores, chance=1 / 3)
    assert (summary.msr.value, summary.dsr.value, summary.sr.value) == (0.8, 0.75, 0.6)
    assert (summary.msr.count, summary.dsr.count, summary.sr.count) == (10, 8, 10)
    assert summary.adjusted_dsr == pytest.approx((0.75 - 1 / 3) / (2 / 3))
    assert list(summary.reasons.items()) == [
        ("success", 6),
        ("wrong choice", 2),
        ("toppled: cup_1", 2),
    ]
    json.dumps(summary.as_dict(), allow_nan=False)


def test_summary_of_nothing_scorable() -> None:
    summary = summarise([Score(False, False, None, "no contact")], chance=1 / 3)
    assert math.isnan(summary.dsr.value) and math.isnan(summary.adjusted_dsr)
    assert (summary.dsr.low, summary.dsr.high, summary.sr.value) == (0.0, 1.0, 0.0)
    assert json.loads(json.dumps(summary.as_dict(), allow_nan=False))["dsr"]["value"] is None


def test_training_and_evaluation_share_no_seed() -> None:
    assert TRAINING_SEEDS.stop <= EVALUATION_SEEDS.start
    used = {
        recording_seed(recording, episode, 3, 120)
        for recording in (0, 1, 9999)
        for episode in (0, 119)
    }
    assert len(used) == 6 and all(seed in TRAINING_SEEDS for seed in used)
    refuse_training_seeds([evaluation_seed(0), evaluation_seed(199)])
    with pytest.raises(ValueError, match=r"not evaluation seeds: \[17\]"):
        refuse_training_seeds([evaluation_seed(3), 17])
    with pytest.raises(ValueError, match="between 0 and 9999"):
        recording_seed(10_000, 0, 0, 120)


def test_streams_of_a_seed_are_independent() -> None:
    draws = [stream(5, name).random() for name in ("answer", "layout", "noise")] + [
        stream(6, "answer").random()
    ]
    assert len(set(draws)) == 4
    assert stream(5, "answer").random() == draws[0]
