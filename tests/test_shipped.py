"""The shipped policy, and publishing its scores in the documents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.figure import Figure

from benchmarks import camo_scores
from benchmarks.tables.scores import camo_chameleon, tracks
from chameleon_policy import ChameleonPolicy
from chameleon_policy.camo import task_named
from chameleon_policy.camo.recording import Recording
from chameleon_policy.data import load_episodes, open_episodes
from chameleon_policy.evaluate.evaluation import FIRST_SEED, evaluate, evaluation_seeds
from chameleon_policy.evaluate.loading import load_for_evaluation
from chameleon_policy.experiments.pipeline import HELD_OUT
from chameleon_policy.policy.places import SHIPPED
from chameleon_policy.rates import Rate
from chameleon_policy.recorder import record
from chameleon_policy.suite import PAPER_TASKS
from chameleon_policy.train.config import RunConfig, TrainingConfig
from chameleon_policy.train.held_out import probe_metric
from chameleon_policy.train.training import build_policy

LARGEST = 16e6
"""Bytes of all files of a policy."""


def test_shipped_policies_are_small_have_a_card_and_load_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a name works in every folder
    folders = list(SHIPPED.iterdir())
    assert [folder.name for folder in folders] == ["camo-small"]
    for folder in folders:
        assert sum(path.stat().st_size for path in folder.iterdir()) <= LARGEST
        card = (folder / "README.md").read_text()
        assert all(heading in card for heading in ("## Scores", "Data: ", "Recipe: ", "## Limits"))
        policy = ChameleonPolicy.from_pretrained(folder.name)
        assert next(policy.parameters()).dtype == torch.bfloat16
        assert [view.name for view in policy.features.views] == ["third", "wrist"]
    with pytest.raises(FileNotFoundError, match=r"comes with the package \(camo-small\)"):
        ChameleonPolicy.from_pretrained("camo-large")


def test_folder_of_the_same_name_takes_precedence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("camo-small").mkdir()
    with pytest.raises(FileNotFoundError, match="camo-small is no saved policy"):
        ChameleonPolicy.from_pretrained("camo-small")


def document(demonstrations: int, right: int) -> dict:
    all_right, some_right = vars(Rate.of(10, 10)), vars(Rate.of(right, 10))
    rates = {"msr": all_right, "dsr": some_right, "sr": some_right}
    probes = {probe_metric(task.instruction): right / 10 for task in map(task_named, PAPER_TASKS)}
    result = {
        "demonstrations": demonstrations,
        "looks": [{"seconds": seconds, **probes} for seconds in (60.0, 120.0)],
        "tasks": dict.fromkeys(PAPER_TASKS, rates),
    }
    return {**dict.fromkeys(camo_scores.BESIDE, demonstrations), "result": result}


def test_tracks_are_joined_and_shown_in_a_table() -> None:
    whole = camo_scores.joined([document(600, 9), document(120, 5)])
    assert whole["command"] == 600 and whole["result"]["tracks"]["120"]["git_revision"] == 120
    result = json.loads(json.dumps(whole))["result"]
    lines = camo_chameleon(result).splitlines()
    assert lines[2] == "| clean-plate | 600 | 100 [72, 100] | 90 [60, 98] | 90 [60, 98] |"
    assert lines[5] == "| **mean** | 600 | **100.0** | **90.0** | **90.0** |"
    assert lines[9] == "| **mean** | 120 | **100.0** | **50.0** | **50.0** |" and len(lines) == 11


def test_incomplete_scores_are_refused() -> None:
    half = document(600, 9)
    del half["result"]["tasks"]["seasonings"]
    for documents, message in (
        ([], "at least one"),
        ([document(600, 1)] * 2, "one folder for each"),
        ([half], "seasonings"),
    ):
        with pytest.raises(ValueError, match=message):
            camo_scores.joined(documents)


def test_publishing_writes_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, run = tmp_path / "shipped", tmp_path / "run"
    (run / "policy").mkdir(parents=True)
    target.mkdir()
    (run / "scores.json").write_text(json.dumps(document(600, 9)))
    for name in ("config.json", "normalizer.json", "model.safetensors"):
        (run / "policy" / name).write_text(name)
    monkeypatch.setattr(camo_scores, "PUBLISHED", tmp_path / "published.json")
    monkeypatch.setattr(camo_scores, "FOLDER", target)
    monkeypatch.setattr(camo_scores, "ROOT", tmp_path)
    (tmp_path / "docs/images").mkdir(parents=True)
    camo_scores.main((run,))
    assert json.loads((tmp_path / "published.json").read_text())["result"]["tracks"] == {}
    assert {path.name for path in target.iterdir()} == {
        "config.json",
        "normalizer.json",
        "model.safetensors",
    }
    assert (tmp_path / "docs/images/camo-learning-600.svg").is_file()


def test_curves_have_the_intervals_of_the_held_out_episodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn, draw = {}, camo_scores.interval_chart

    def noted(lines: dict, **options: Any) -> Figure:
        drawn.update(lines)
        return draw(lines, **options)

    monkeypatch.setattr(camo_scores, "interval_chart", noted)
    camo_scores.figure(document(600, 9)["result"])
    rate = Rate.of(54, HELD_OUT)
    curve = [(minutes, 0.9, rate.low, rate.high) for minutes in (1.0, 2.0)]
    assert drawn == dict.fromkeys(PAPER_TASKS, curve)


def test_committed_curves_are_drawn_from_the_committed_scores() -> None:
    result = json.loads(camo_scores.PUBLISHED.read_text())["result"]
    for track in tracks(result):
        assert camo_scores.figure_of(track).read_text() == camo_scores.figure(track)


def test_policies_are_evaluated_in_float32() -> None:
    policy, settings = load_for_evaluation("camo-small", "shell-game", "cpu")
    assert {weight.dtype for weight in policy.parameters()} == {torch.float32}
    assert settings.image_size == 128


@pytest.mark.slow
@pytest.mark.parametrize("task", PAPER_TASKS)
def test_shipped_policy_succeeds_far_above_chance(task: str) -> None:
    """Evaluate on a few held-out episodes."""
    policy, settings = load_for_evaluation("camo-small", task, "cpu")
    summary = evaluate(policy, settings, evaluation_seeds(FIRST_SEED, 12), parallel=12).summary
    assert summary.sr.value >= 0.75 > summary.chance


def test_training_can_start_from_the_shipped_policy(tmp_path: Path) -> None:
    data = record(Recording(task="clean-plate", episodes=1), tmp_path / "data")
    config = RunConfig(data=(data,), start_from="camo-small", training=TrainingConfig(steps=1))
    episodes = open_episodes(data)
    policy = build_policy(config, episodes, load_episodes(episodes))
    shipped = ChameleonPolicy.from_pretrained("camo-small")
    assert policy.statistics == shipped.statistics
    weights = dict(policy.named_parameters())
    for name, weight in shipped.named_parameters():
        assert weights[name].dtype == torch.float32 and torch.equal(weights[name], weight.float())
