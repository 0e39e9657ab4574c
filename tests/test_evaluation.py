"""Closed-loop evaluation: scores of an oracle and a guesser, reproducibility, refusals."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import toy_suite
from benchmarks.reliability import KilledWorkers
from camo_episodes import WAIT
from chameleon_policy import ChameleonPolicy, Features, ObjectSlots, Range, Statistics, View
from chameleon_policy.camo import TASKS
from chameleon_policy.camo.recording import Recording
from chameleon_policy.camo.settings import CamoSettings
from chameleon_policy.cli import main
from chameleon_policy.evaluate import pool as pool_module
from chameleon_policy.evaluate import watch
from chameleon_policy.evaluate.evaluation import (
    FIRST_SEED,
    Evaluation,
    evaluate,
    evaluation_seeds,
)
from chameleon_policy.evaluate.loading import load_for_evaluation
from chameleon_policy.evaluate.oracle import LastAction, OraclePolicy
from chameleon_policy.evaluate.pool import EnvPool, Order, Tick
from chameleon_policy.evaluate.rollouts import Rollout, roll_out
from chameleon_policy.evaluate.videos import save_failures
from chameleon_policy.evaluate.watch import watch_training_seeds
from chameleon_policy.rates import percent
from chameleon_policy.recorder import record
from chameleon_policy.suite import EpisodeResult
from examples import nano

CLEAN_PLATE = CamoSettings(task="clean-plate", observation="state")


def clean_plate_policy() -> ChameleonPolicy:
    """Return an untrained policy, whose actions stay near the table."""
    torch.manual_seed(0)
    low, high = (0.3, -0.3, 0.1, *[-1.0] * 6, 0.0), (0.6, 0.3, 0.4, *[1.0] * 7)
    features = Features(
        objects=ObjectSlots(count=5, size=7), proprioception=10, action=10, horizon=8
    )
    return ChameleonPolicy(
        nano(), features, Statistics(action=Range(low=low, high=high)), with_control_jepa=False
    ).eval()


@pytest.mark.parametrize(
    ("task", "episodes"), [("clean-plate", 12), ("shell-game", 12), ("seasonings", 4)]
)
def test_an_oracle_succeeds(task: str, episodes: int) -> None:
    settings = CamoSettings(task=task, observation="state", kind="oracle")
    evaluation = evaluate(OraclePolicy(), settings, evaluation_seeds(FIRST_SEED, episodes))
    assert evaluation.summary.sr.value == 1.0
    assert evaluation.summary.reasons == {"success": episodes}
    assert [rollout.played.seed for rollout in evaluation.rollouts] == evaluation_seeds(
        FIRST_SEED, episodes
    )


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_an_oracle_succeeds_in_99_of_100(task: str) -> None:
    settings = CamoSettings(task=task, observation="state", kind="oracle")
    assert (
        evaluate(OraclePolicy(), settings, evaluation_seeds(FIRST_SEED, 100)).summary.sr.value
        >= 0.99
    )


def test_an_expert_without_memory_is_at_chance() -> None:
    settings = CamoSettings(task="shell-game", observation="state", kind="guess")
    summary = evaluate(OraclePolicy(), settings, evaluation_seeds(FIRST_SEED, 36)).summary
    assert summary.msr.value == 1.0
    assert summary.dsr.low < summary.chance < summary.dsr.high
    assert summary.dsr.high < 0.7


SEEDS = evaluation_seeds(FIRST_SEED, 3)


@pytest.fixture(scope="module")
def alone() -> Evaluation:
    """Return an evaluation in one process."""
    return evaluate(clean_plate_policy(), CLEAN_PLATE, SEEDS, steps=3, parallel=2, workers=0)


def assert_same(rollouts: list[Rollout], expected: list[Rollout]) -> None:
    for one, other in zip(rollouts, expected, strict=True):
        assert one.played == other.played
        assert np.array_equal(one.actions, other.actions)


def test_the_number_of_processes_does_not_change_results(alone: Evaluation) -> None:
    policy = clean_plate_policy()
    in_two = evaluate(policy, CLEAN_PLATE, SEEDS, steps=3, parallel=2, workers=2)
    assert_same(in_two.rollouts, alone.rollouts)
    assert in_two.as_dict() == alone.as_dict()
    others = evaluate(
        policy, CLEAN_PLATE, evaluation_seeds(FIRST_SEED + 5, 1), steps=3, parallel=1, workers=0
    )
    assert not np.array_equal(others.rollouts[0].actions[:5], alone.rollouts[0].actions[:5])


class CountingPolicy(OraclePolicy):
    """Policy that counts its observations and notes when a chunk is requested."""

    features = Features(
        objects=ObjectSlots(count=1, size=1), proprioception=10, action=10, horizon=8
    )

    def __init__(self) -> None:
        self.planned_at: list[int] = []
        self.ticks = 0

    def observe(self, observation, state):
        self.ticks += 1
        return super().observe(observation, state)

    def act(self, state, *, steps=None, source=None):
        self.planned_at.append(self.ticks)
        return state.action.unsqueeze(1).expand(-1, 8, -1)


def test_memory_ticks_every_step_and_chunks_end_at_decisions() -> None:
    """Observe once per control step, and plan every fourth one and at the decision."""
    policy = CountingPolicy()
    with EnvPool(CLEAN_PLATE, 1, 0) as pool:
        (rollout,) = roll_out(policy, pool, [FIRST_SEED], executed=4)
        env = CLEAN_PLATE.make_env()
        env.reset(seed=FIRST_SEED)
    # before the first action, and after every one
    assert policy.ticks == rollout.played.length + 1
    planned = [tick - 1 for tick in policy.planned_at]
    before = [t for t in planned if t < env.decision_step]
    after = [t for t in planned if t >= env.decision_step]
    assert before == list(range(0, env.decision_step, 4))
    assert after == list(range(env.decision_step, rollout.played.length, 4))


class StillPolicy(OraclePolicy):
    """Policy that holds still, counts steps in its memory, and notes memory and noise of plans."""

    features = Features(
        objects=ObjectSlots(count=1, size=1), proprioception=10, action=10, horizon=8
    )

    def __init__(self) -> None:
        self.plans: list[tuple[float, float]] = []

    def observe(self, observation, state):
        return LastAction(state.action + 1)

    def act(self, state, *, steps=None, source=None):
        self.plans.append((float(state.action[0, 0]), float(source[0, 0, 0])))
        return torch.from_numpy(WAIT).float().expand(len(state), 8, -1)


def test_an_episode_begins_with_fresh_memory_and_its_own_noise() -> None:
    """Three episodes one after the other in one slot are like three episodes alone."""
    seeds = evaluation_seeds(FIRST_SEED, 3)
    alone = []
    for seed in seeds:
        policy = StillPolicy()
        evaluate(policy, CLEAN_PLATE, [seed], parallel=1, workers=0)
        alone += policy.plans
    together = StillPolicy()
    evaluate(together, CLEAN_PLATE, seeds, parallel=1, workers=0)
    assert together.plans == alone
    assert len({noise for _, noise in alone}) == len(alone)
    assert sum(steps == 1 for steps, _ in alone) == 3


def test_an_evaluation_with_killed_processes_has_the_same_results(alone: Evaluation) -> None:
    """Kill a worker early, and its successor in a later episode."""
    with KilledWorkers(CLEAN_PLATE, 2, 2, kill_at=(5, 7, 60)) as pool:
        with pytest.warns(UserWarning, match="another one plays its episodes again"):
            rollouts = roll_out(clean_plate_policy(), pool, SEEDS, steps=3)
        assert pool.killed == 3
    assert_same(rollouts, alone.rollouts)


def test_an_episode_may_end_in_the_step_in_which_its_worker_died() -> None:
    """The other episode of the worker, which began earlier, goes on."""

    class Pipe:
        def send(self, order: Order) -> None:
            self.order = order

        def recv(self) -> dict[int, Tick]:
            over = {1: EpisodeResult(7, None, None, {}, 1)}
            return {
                slot: Tick({}, False, over.get(slot) if isinstance(entry, np.ndarray) else None)
                for slot, entry in self.order.items()
            }

    with EnvPool(toy_suite.LitSettings(), 2, 1) as pool:
        worker = pool._workers[0]
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(worker, "_pipe", Pipe())
            worker._episodes = {0: [(6, None), WAIT, WAIT, WAIT], 1: [(7, None), WAIT]}
            ticks = worker._play_again()
    assert ticks[1].played is not None and ticks[0].played is None


def test_processes_that_die_again_and_again_are_reported(monkeypatch) -> None:
    monkeypatch.setattr(pool_module, "RESTARTS", 0)
    with KilledWorkers(CLEAN_PLATE, 2, 1, kill_at=(2,)) as pool:
        pool.advance({0: (FIRST_SEED, None)})
        with pytest.raises(OSError, match=r"an evaluation process died, and so.*fewer --workers"):
            pool.advance({0: WAIT})


def test_a_frozen_process_is_replaced() -> None:
    """A worker that is stopped in mid-episode is killed; the next one shows the same picture."""
    settings = toy_suite.LitSettings()
    with EnvPool(settings, 1, 1) as pool, EnvPool(settings, 1, 0) as undisturbed:
        for each in (pool, undisturbed):
            each.advance({0: (6, None)})
        frozen = pool._workers[0].process
        os.kill(frozen.pid, signal.SIGSTOP)
        for _ in range(1 + pool_module.SILENT_BEATS):  # the first one sees its last beats
            pool._workers[0].end_if_frozen()
        frozen.join(timeout=60)
        assert frozen.exitcode == -signal.SIGKILL
        action = {0: np.array([0.5], np.float32)}
        with pytest.warns(UserWarning, match="died or froze"):
            tick = pool.advance(action)[0]
        expected = undisturbed.advance(action)[0].observation
        assert all(np.array_equal(tick.observation[key], expected[key]) for key in expected)


def test_a_pause_of_the_whole_evaluation_is_no_frozen_process() -> None:
    """However long a stop of everything lasts, it is one beat that did not come."""
    with EnvPool(toy_suite.LitSettings(), 1, 1) as pool:
        pool.advance({0: (6, None)})
        worker = pool._workers[0]
        os.kill(worker.process.pid, signal.SIGSTOP)
        for _ in range(pool_module.SILENT_BEATS // 2):
            worker.end_if_frozen()
        os.kill(worker.process.pid, signal.SIGCONT)
        assert not pool.advance({0: np.array([1.0])})[0].played
        assert worker.process.is_alive()


def test_a_frozen_process_does_not_keep_the_pool_open(monkeypatch) -> None:
    monkeypatch.setattr(pool_module, "CLOSING_SECONDS", 0.1)
    pool = EnvPool(toy_suite.LitSettings(), 1, 1)
    pool.advance({0: (6, None)})
    process = pool._workers[0].process
    os.kill(process.pid, signal.SIGSTOP)
    pool.close()
    assert process.exitcode == -signal.SIGKILL


def test_scores_by_answer_and_difficulty() -> None:
    settings = CamoSettings(
        task="shell-game",
        observation="state",
        kind="guess",
        difficulty={"swaps": (0, 1)},
        retention_steps=4,
    )
    evaluation = evaluate(OraclePolicy(), settings, evaluation_seeds(FIRST_SEED, 12))
    result = json.loads(json.dumps(evaluation.as_dict()))
    assert set(result["by_difficulty"]) == {"swaps", "retention_steps"}
    assert set(result["by_difficulty"]["swaps"]) == {"0", "1"}
    assert set(result["by_difficulty"]["retention_steps"]) == {"4"}
    assert sum(part["sr"]["count"] for part in result["by_answer"].values()) == 12
    for z, part in result["by_answer"].items():
        mine = [rollout for rollout in result["rollouts"] if str(rollout["z"]) == z]
        assert part["sr"]["value"] == pytest.approx(np.mean([each["decision"] for each in mine]))


def test_a_replay_is_the_episode(tmp_path: Path) -> None:
    evaluation = evaluate(
        clean_plate_policy(), CLEAN_PLATE, evaluation_seeds(FIRST_SEED, 1), steps=2, workers=0
    )
    rollout = evaluation.rollouts[0]
    assert not rollout.played.score.success
    (path,) = save_failures(CLEAN_PLATE, evaluation.rollouts, tmp_path / "videos", size=32)
    assert path.name.startswith(f"{FIRST_SEED}-")
    assert path.stat().st_size > 1000


def test_training_seeds_are_watched_during_training(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(watch, "SAMPLING_STEPS", 1)  # fast, as are small batches
    monkeypatch.setattr(watch, "evaluate", partial(evaluate, parallel=2))
    recording = Recording(
        task="clean-plate", episodes=3, observation="state", retention_steps=(3, 4)
    )
    record(recording, tmp_path / "data")
    policy = clean_plate_policy()
    metrics = watch_training_seeds([tmp_path / "data"], 2, 0, policy)(policy)
    assert set(metrics) == {"train_msr", "train_dsr", "train_sr"}
    both = watch_training_seeds([tmp_path / "data"] * 2, 1, 0, policy)(policy)
    # the same recording twice
    assert len(both) == 3 and all(name.endswith(f"_{tmp_path / 'data'}") for name in both)
    record(replace(recording, seed=1, episodes=1), tmp_path / "more")
    both = watch_training_seeds([tmp_path / "data", tmp_path / "more"], 1, 0, policy)(policy)
    assert {"train_msr_data", "train_msr_more"} <= set(both) and len(both) == 6
    with pytest.raises(ValueError, match="no recording of camo"):
        watch_training_seeds([tmp_path], 2, 0, policy)
    other = ChameleonPolicy(
        nano(),
        Features(objects=ObjectSlots(count=4, size=7), proprioception=10, action=10, horizon=4),
    )
    with pytest.raises(ValueError, match="trained on another task"):
        watch_training_seeds([tmp_path / "data"], 2, 0, other)
    (tmp_path / "data/camo/recording.json").write_text("{}")
    with pytest.raises(ValueError, match=r"recording\.json is damaged"):
        watch_training_seeds([tmp_path / "data"], 2, 0, policy)


def test_training_seeds_are_refused() -> None:
    with pytest.raises(ValueError, match="not evaluation seeds"):
        evaluate(clean_plate_policy(), CLEAN_PLATE, [7])


class TestLoading:
    def test_a_policy_of_another_task(self, tmp_path: Path) -> None:
        clean_plate_policy().save_pretrained(tmp_path)
        with pytest.raises(ValueError, match="shell-game has 6 object slots"):
            load_for_evaluation(tmp_path, "shell-game", "cpu")
        policy, settings = load_for_evaluation(tmp_path, "clean-plate", "cpu", nuisance="mild")
        assert policy.features.horizon == 8
        assert (settings.observation, settings.nuisance) == ("state", "mild")

    def test_views_decide_the_image_size(self, tmp_path: Path) -> None:
        views = tuple(View(name=name, height=64, width=64) for name in ("third", "wrist"))
        ChameleonPolicy(
            nano(), Features(views=views, proprioception=10, action=10, horizon=4)
        ).save_pretrained(tmp_path)
        _, settings = load_for_evaluation(tmp_path, "shell-game", "cpu")
        assert (settings.observation, settings.image_size) == ("rgb", 64)
        ChameleonPolicy(
            nano(), Features(views=views[:1], proprioception=10, action=10, horizon=4)
        ).save_pretrained(tmp_path)
        with pytest.raises(
            ValueError, match="square views third and wrist; this policy has third 64 x 64"
        ):
            load_for_evaluation(tmp_path, "shell-game", "cpu")

    def test_another_robot(self, tmp_path: Path) -> None:
        features = Features(
            objects=ObjectSlots(count=5, size=7), proprioception=7, action=7, horizon=4
        )
        ChameleonPolicy(nano(), features).save_pretrained(tmp_path)
        with pytest.raises(ValueError, match="trained for another robot"):
            load_for_evaluation(tmp_path, "clean-plate", "cpu")

    def test_a_run_without_a_policy(self, tmp_path: Path) -> None:
        (tmp_path / "run.json").write_text("{}")
        with pytest.raises(FileNotFoundError, match="has not saved a policy yet"):
            load_for_evaluation(tmp_path, "clean-plate", "cpu")


def test_the_command(tmp_path: Path, capsys, monkeypatch) -> None:
    clean_plate_policy().save_pretrained(tmp_path / "policy")
    (tmp_path / "run.json").write_text("{}")
    arguments = [
        "chameleon",
        "eval",
        str(tmp_path),
        "--task",
        "clean-plate",
        "--episodes",
        "2",
        "--steps",
        "2",
        "--workers",
        "0",
    ]
    monkeypatch.setattr("sys.argv", [*arguments, "--json", str(tmp_path / "scores.json")])
    main()
    shown = capsys.readouterr().out
    assert "a guess has DSR 33%" in shown
    scores = json.loads((tmp_path / "scores.json").read_text())
    assert scores["seeds"] == [FIRST_SEED, FIRST_SEED + 1]
    assert scores["result"]["episodes"] == 2
    wrongs = {
        "not evaluation seeds": ["--first-seed", "5"],
        "at most 8, the actions of a chunk": ["--executed", "9"],
        "--json must name a file": ["--json", str(tmp_path)],
        "--videos must name a folder": ["--videos", str(tmp_path / "scores.json")],
    }
    for message, wrong in wrongs.items():
        monkeypatch.setattr("sys.argv", [*arguments, *wrong])
        with pytest.raises(SystemExit, match="2"):
            main()
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("right", "shown"), [(0, 0), (1, 1), (57, 29), (184, 92), (185, 93), (187, 94), (200, 100)]
)
def test_half_per_cents_are_rounded_up(right: int, shown: int) -> None:
    assert percent(right / 200) == shown
