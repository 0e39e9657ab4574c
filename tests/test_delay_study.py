"""The delay study in miniature, and its figure."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from benchmarks import delay_study

RESULTS = Path(__file__).parents[1] / "docs/results"


def test_every_point_is_an_evaluation_at_that_difficulty(tmp_path: Path) -> None:
    out = tmp_path / "delay.json"
    delay_study.main(
        Path("guess"),
        "shell-game",
        out,
        episodes=2,
        retention=(0, 12),
        swaps=(0, 3),
        steps=1,
        workers=0,
        device="cpu",
    )
    result = json.loads(out.read_text())["result"]
    assert result["euler_steps"] == 1
    assert list(result["retention_steps"]) == ["0", "12"] and list(result["swaps"]) == ["0", "3"]
    for dial, value in (("retention_steps", 0), ("retention_steps", 12)):
        assert result[dial][str(value)]["environment"][dial] == [value, value]
    assert [row["environment"]["difficulty"] for row in result["swaps"].values()] == [
        {"swaps": 0},
        {"swaps": 3},
    ]
    for row in (*result["retention_steps"].values(), *result["swaps"].values()):
        assert row["msr"] == {
            "value": 1.0,
            "low": pytest.approx(0.34, abs=0.01),
            "high": 1.0,
            "count": 2,
        }
    for dial in ("retention-steps", "swaps"):
        ElementTree.parse(out.with_name(f"delay-{dial}.svg"))


def test_other_tasks_have_no_swaps(tmp_path: Path) -> None:
    out = tmp_path / "delay.json"
    delay_study.main(
        Path("oracle"),
        "clean-plate",
        out,
        episodes=1,
        retention=(3,),
        steps=1,
        workers=0,
        device="cpu",
    )
    result = json.loads(out.read_text())["result"]
    assert "swaps" not in result and result["retention_steps"]["3"]["sr"]["value"] == 1.0


@pytest.mark.parametrize(
    ("said", "option", "expected"), [(None, None, 10), (30, None, 40), (None, 20, 30), (30, 0, 10)]
)
def test_the_range_trained_on(
    said: int | None,
    option: int | None,
    expected: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    training = None if said is None else {"training": {"longer_retention": said}}
    monkeypatch.setattr(delay_study, "training_of", lambda run: training)
    out = tmp_path / "delay.json"
    delay_study.main(
        Path("guess"),
        "clean-plate",
        out,
        episodes=1,
        retention=(0,),
        longer_retention=option,
        steps=1,
        workers=0,
        device="cpu",
    )
    assert json.loads(out.read_text())["result"]["trained_on"] == {
        "retention_steps": [3, expected],
        "swaps": [1, 2],
    }


def test_a_policy_that_does_not_say_what_it_was_trained_on(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="give --longer-retention"):
        delay_study.main(Path("camo-small"), "shell-game", tmp_path / "delay.json")


def test_committed_figures_are_drawn_from_the_committed_result() -> None:
    result = json.loads((RESULTS / "delay-shell-game.json").read_text())["result"]
    for dial, trained in result["trained_on"].items():
        drawn = delay_study.figure("shell-game", dial, result[dial], trained)
        path = RESULTS / f"delay-shell-game-{dial.replace('_', '-')}.svg"
        assert path.read_text() == drawn, f"python -m benchmarks.delay_study draws {path.name}"
