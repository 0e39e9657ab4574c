"""Another suite than Camo needs one line in the registry: it is recorded, played and scored."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from chameleon_policy import ChameleonPolicy, Features, ObjectSlots
from chameleon_policy.camo import TASKS
from chameleon_policy.cli import main
from chameleon_policy.console import progress_bar
from chameleon_policy.data import load_episodes, open_episodes
from chameleon_policy.evaluate.evaluation import FIRST_SEED, evaluate, evaluation_seeds
from chameleon_policy.evaluate.loading import load_for_evaluation
from chameleon_policy.evaluate.oracle import OraclePolicy
from chameleon_policy.evaluate.pool import EnvPool
from chameleon_policy.evaluate.videos import save_failures
from chameleon_policy.evaluate.watch import watch_training_seeds
from chameleon_policy.experiments.bench.jobs import Bench
from chameleon_policy.experiments.bench.rows import Results, row_of
from chameleon_policy.experiments.bench.schedule import missing
from chameleon_policy.experiments.pipeline import Workspace
from chameleon_policy.recorder import record, record_once
from chameleon_policy.suite import SUITES, find_task, suite_named
from examples import nano
from toy_suite import STEPS, LitRecording, LitSettings


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SUITES, "toy", "toy_suite:TOY")


def toy_policy() -> ChameleonPolicy:
    """Return an untrained policy."""
    torch.manual_seed(0)
    features = Features(objects=ObjectSlots(count=2, size=2), proprioception=1, action=1, horizon=2)
    return ChameleonPolicy(nano(), features).eval()


def test_suites_and_tasks_are_found_by_name() -> None:
    assert suite_named("camo").tasks == tuple(TASKS)
    assert [find_task(name)[1] for name in ("shell-game", "camo/shell-game")] == ["shell-game"] * 2
    suite, task = find_task("toy/lit")
    assert (suite.name, task) == ("toy", "lit")
    with pytest.raises(ValueError, match="no suite 'soup'; the suites are camo, toy"):
        find_task("soup/lit")
    with pytest.raises(ValueError, match="no task 'lit'; the tasks are clean-plate"):
        find_task("lit")


@pytest.mark.parametrize("workers", [0, 2])
def test_the_pool_plays_it(workers: int) -> None:
    with EnvPool(LitSettings(), 2, workers) as pool:
        ticks = pool.advance({0: (6, None), 1: (7, None)})
        assert [tick.observation["objects"][:, 1].tolist() for tick in ticks.values()] == [
            [1, 0],
            [0, 1],
        ]
        assert not any(tick.decision or tick.played for tick in ticks.values())
        for _ in range(STEPS):
            ticks = pool.advance(dict.fromkeys((0, 1), np.array([1.0])))
    assert [tick.played.score.success for tick in ticks.values()] == [False, True]


def test_an_evaluation_has_a_success_rate_and_no_others(tmp_path: Path) -> None:
    policy, settings = load_for_evaluation("oracle", "toy/lit")
    seeds = evaluation_seeds(FIRST_SEED, 5)
    evaluation = evaluate(policy, settings, seeds, parallel=2, workers=0)
    result = json.loads(json.dumps(evaluation.as_dict()))
    assert result["sr"]["value"] == 1.0 and result["reasons"] == {"success": 5}
    assert "dsr" not in result and result["by_answer"] == result["by_difficulty"] == {}
    assert result["rollouts"][0] == {
        "seed": FIRST_SEED,
        "z": None,
        "success": True,
        "reason": "success",
        "control_steps": STEPS,
    }
    assert isinstance(policy, OraclePolicy) and policy.features.action == 1
    blind = evaluate(policy, replace(settings, expert=False), seeds, parallel=2, workers=0)
    assert blind.summary.sr.value == 0.0
    videos = save_failures(blind.settings, blind.rollouts, tmp_path, size=32)
    assert videos[0].name == f"{FIRST_SEED}-wrong-side.mp4" and len(videos) == 5


def test_demonstrations_are_recorded_and_a_training_is_watched(tmp_path: Path) -> None:
    record(LitRecording(), tmp_path / "toy", workers=2)
    episodes = load_episodes(open_episodes(tmp_path / "toy"))
    assert [len(episode.actions) for episode in episodes] == [STEPS] * 4
    assert [episode.actions[0, 0] for episode in episodes] == [-1, 1, -1, 1]
    table = pq.read_table(tmp_path / "toy/toy/episodes.parquet").to_pylist()
    assert [row["seed"] for row in table] == [0, 1, 2, 3]
    record_once(LitRecording(), tmp_path / "toy", progress_bar, 1)
    with pytest.raises(ValueError, match="holds other demonstrations"):
        record_once(LitRecording(episodes=5), tmp_path / "toy", progress_bar, 1)
    policy = toy_policy()
    scores = watch_training_seeds([tmp_path / "toy"], 2, 0, policy)(policy)
    assert set(scores) == {"train_sr"}


def test_an_unfinished_recording_says_how_to_go_on(tmp_path: Path) -> None:
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy/recording.json").write_text("{}")
    with pytest.raises(FileNotFoundError, match="recording is incomplete"):
        open_episodes(tmp_path)


def test_the_commands_take_it(tmp_path: Path, monkeypatch, capsys) -> None:
    toy_policy().save_pretrained(tmp_path / "policy")
    command = f"chameleon eval {tmp_path / 'policy'} --task toy/lit --episodes 2 --workers 0"
    monkeypatch.setattr("sys.argv", command.split())
    main()
    assert "lit, 2 episodes" in " ".join(capsys.readouterr().out.split())
    command = f"chameleon record toy/lit --out {tmp_path / 'data'} --episodes 3 --workers 1"
    monkeypatch.setattr("sys.argv", [*command.split(), "--observation", "state"])
    main()
    assert len(open_episodes(tmp_path / "data")) == 3


def test_a_bench_trains_and_scores_on_it(tmp_path: Path, monkeypatch) -> None:
    bench = Bench(
        suite="toy",
        methods=("chameleon",),
        observation="state",
        preset="nano",
        steps=2,
        demonstrations=4,
        episodes=3,
    )
    (job,) = bench.jobs()
    workspace = Workspace(out=tmp_path, command="chameleon bench toy", device="cpu", workers=1)
    workspace.record(bench.recordings(tmp_path, [job]))
    for command in (
        job.train_command(tmp_path, "cpu", 1),
        job.eval_command(tmp_path, "lit", "cpu", 0),
    ):
        monkeypatch.setattr("sys.argv", ["chameleon", *command[3:]])
        main()
    row = row_of(job, "lit", tmp_path, "chameleon bench toy", 0.0)
    results = Results(tmp_path / "table.json")
    results.append(row, "chameleon bench toy")
    assert row["task"] == "lit" and len(row["outcomes"]) == 3 and set(row["outcomes"]) <= {"s", "f"}
    assert "msr" not in row and missing(job, results) == []
    evaluation = workspace.play(job.run(tmp_path), "toy/lit", evaluation_seeds(FIRST_SEED, 3))
    assert evaluation.summary.sr.as_dict() == row["sr"]
