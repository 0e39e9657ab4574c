"""Scores of policies that are given the answer, joined and drawn."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from benchmarks import told_answer
from chameleon_policy.rates import Rate
from chameleon_policy.report.paper import PAPER_TASKS


def evaluation(task: str, seed: int, right: int, kind: str = "told") -> str:
    rates = {name: Rate.of(right, 10).as_dict() for name in ("msr", "dsr", "sr")}
    environment = {"task": task, "kind": kind}
    result = {"environment": environment, "steps": 8, "episodes": 10, "reasons": {}, **rates}
    return json.dumps(
        {
            "seeds": [seed],
            "hardware": {},
            "git_revision": "abc",
            "duration_s": 60.0 + seed,
            "result": result,
        }
    )


@pytest.fixture
def evaluations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("RESULT", "FIGURE"):
        monkeypatch.setattr(told_answer, name, tmp_path / name)
    (tmp_path / "run.json").write_text('{"seed": 4}')
    (tmp_path / "metrics.jsonl").write_text(
        "".join(f'{{"step": {n}, "loss": 1.0, "seconds": {9 * n}.0}}\n' for n in (10, 70))
    )
    for minutes, right in (("10.5", 9), ("2", 5)):
        (tmp_path / "evaluations" / minutes).mkdir(parents=True)
        for seed, task in enumerate(PAPER_TASKS):
            (tmp_path / "evaluations" / minutes / f"{task}.json").write_text(
                evaluation(task, seed, right)
            )
    return tmp_path / "evaluations"


def test_they_stand_in_the_order_of_their_minutes(
    evaluations: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told_answer.main(evaluations.parent / "run.json", evaluations)
    document = json.loads((evaluations.parent / "RESULT").read_text())
    assert document["seeds"] == [0, 1, 2] and document["result"]["training"] == {"seed": 4}
    assert document["result"]["trained"] == {"step": 70, "seconds": 630.0}
    rows = [tasks["seasonings"] for tasks in document["result"]["minutes"].values()]
    assert [row["sr"]["value"] for row in rows] == [0.5, 0.9] and {
        row["euler_steps"] for row in rows
    } == {8}
    assert {row["duration_s"] for row in rows} == {62.0}
    assert capsys.readouterr().out.startswith(
        "2 min, MSR DSR SR: clean-plate 50 [24, 76] 50 [24, 76] 50 [24, 76]; shell-game"
    )
    chart = ElementTree.fromstring((evaluations.parent / "FIGURE").read_text())
    texts = {"".join(text.itertext()) for text in chart.iter("{http://www.w3.org/2000/svg}text")}
    assert texts >= {*PAPER_TASKS, "2", "10.5", "minutes of training on a shared GPU"}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "2/seasonings.json",
            evaluation("seasonings", 0, 5, kind="policy"),
            "no evaluation of seasonings",
        ),
        ("2/seasonings.json", evaluation("shell-game", 0, 5), "no evaluation of seasonings"),
        ("2/seasonings.json", None, "--task seasonings --json"),
        ("old/seasonings.json", "{}", "such as 1.7; got old"),
        ("../metrics.jsonl", None, "a finished training"),
    ],
)
def test_wrong_folders_are_refused(
    evaluations: Path, name: str, content: str | None, message: str
) -> None:
    path = evaluations / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(content) if content else path.unlink()
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        told_answer.main(evaluations.parent / "run.json", evaluations)
    assert not (evaluations.parent / "RESULT").exists()


def test_nothing_to_join(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="got none"):
        told_answer.folders(tmp_path)


def test_the_committed_figure_is_drawn_from_the_committed_result() -> None:
    minutes = json.loads(told_answer.RESULT.read_text())["result"]["minutes"]
    assert told_answer.FIGURE.read_text() == told_answer.figure(minutes)
