"""Scores against a dial, by method, in miniature."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from benchmarks import curves
from chameleon_policy.evaluate.loading import load_for_evaluation


@pytest.fixture
def guesses(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict]]:
    """Let guessing experts stand in for trained policies; return how they were asked for."""
    asked: list[tuple[str, dict]] = []

    def load(run: Path, task: str, device: str, **options: object):
        asked.append((run.name, options))
        return load_for_evaluation("guess", task, device, **options)

    def training(run: Path) -> dict | None:
        method, _, seed = run.name.partition("-seed")
        return {"method": method, "training": {"seed": int(seed)}} if seed else None

    monkeypatch.setattr(curves, "load_for_evaluation", load)
    monkeypatch.setattr(curves, "training_of", training)
    return asked


def test_a_row_for_each_training_and_value(tmp_path: Path, guesses: list) -> None:
    out = tmp_path / "capacity.json"
    runs = (tmp_path / "chameleon-seed0", tmp_path / "chameleon-seed1", tmp_path / "lstm-seed0")
    curves.main("cups", runs, out, values=(3, 8), episodes=2, workers=0, device="cpu")
    document = json.loads(out.read_text())
    rows = document["rows"]
    assert [(row["method"], row["seed"], row["cups"]) for row in rows] == [
        ("chameleon", 0, 3),
        ("chameleon", 0, 8),
        ("chameleon", 1, 3),
        ("chameleon", 1, 8),
        ("lstm", 0, 3),
        ("lstm", 0, 8),
    ]
    assert all(row["dsr"]["count"] == 2 and row["chance"] == 1 / row["cups"] for row in rows)
    assert len(document["seeds"]) == 2
    assert [options["difficulty"] for _, options in guesses[:2]] == [
        {"questions": 1, "cups": 3},
        {"questions": 1, "cups": 8},
    ]
    ElementTree.parse(out.with_suffix(".svg"))


def test_a_study_goes_on_where_it_was(tmp_path: Path, guesses: list) -> None:
    out = tmp_path / "retention.json"
    arguments = {"values": (3,), "episodes": 1, "workers": 0, "device": "cpu"}
    curves.main("retention", (tmp_path / "lstm-seed0",), out, **arguments)
    both = (tmp_path / "lstm-seed0", tmp_path / "lstm-seed1")
    curves.main("retention", both, out, **arguments)
    assert [name for name, _ in guesses] == ["lstm-seed0", "lstm-seed1"]
    assert [options["retention_steps"] for _, options in guesses] == [(3, 3)] * 2
    assert len(json.loads(out.read_text())["rows"]) == 2


def test_episodes_of_all_trainings_count_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line goes through the share of all episodes, and through the chance of a guess."""
    drawn: dict = {}
    monkeypatch.setattr(curves, "svg", lambda chart: "")
    monkeypatch.setattr(
        curves, "interval_chart", lambda lines, **options: drawn.update(lines=lines, **options)
    )
    row = {"task": "pantry", "method": "lstm", "cups": 4, "chance": 0.25}
    rate = {"low": 0.0, "high": 1.0}
    rows = [
        {**row, "seed": 0, "dsr": {**rate, "value": 1.0, "count": 30}},
        {**row, "seed": 1, "dsr": {**rate, "value": 0.2, "count": 10}},
        {**row, "seed": 2, "dsr": {**rate, "value": None, "count": 0}},
    ]
    curves.figure("cups", "pantry", rows, trained_on=(3, 6))
    (x, value, low, high) = drawn["lines"]["LSTM"][0]
    assert (x, value) == (4.0, 0.8) and low < 0.8 < high
    assert drawn["lines"]["a guess"] == [(4.0, 0.25, 0.25, 0.25)]
    assert drawn["trained_on"] == (3, 6)


def test_a_folder_that_is_no_training(tmp_path: Path, guesses: list) -> None:
    with pytest.raises(SystemExit, match="is no training"):
        curves.main("cups", (tmp_path / "data",), tmp_path / "x.json", episodes=1)
