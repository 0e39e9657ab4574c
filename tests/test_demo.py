"""The demonstration in small: all of its stations, not its scores."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from chameleon_policy.baselines import load_policy
from chameleon_policy.camo import Summary
from chameleon_policy.cli import main
from chameleon_policy.experiments import demo
from chameleon_policy.rates import Rate
from chameleon_policy.report.demo_page import Contender, demo_page

OPTIONS = [
    "--demonstrations",
    "3",
    "--minutes",
    "0.02",
    "--twin-minutes",
    "0.02",
    "--episodes",
    "2",
]
OPTIONS += ["--shipped-episodes", "1"]


@pytest.mark.slow
def test_from_nothing_to_a_page_and_again(tmp_path: Path, capsys, monkeypatch) -> None:
    out = tmp_path / "demo"
    monkeypatch.setattr(demo, "PAPER_TASKS", ("clean-plate",))  # the shortest
    monkeypatch.setattr("sys.argv", ["chameleon", "demo", "--out", str(out), *OPTIONS])
    main()
    assert f"file://{out}/index.html" in capsys.readouterr().out
    page = (out / "index.html").read_text()
    assert page.count("data:video/mp4;base64,") == 4 + 1
    assert not re.findall(r"(?:src|href)=\"https?:", page)
    scores = json.loads((out / "scores.json").read_text())["result"]
    assert {scores[method]["episodes"] for method in ("chameleon", "no-memory")} == {2}
    assert scores["chameleon"]["training"]["step"] >= 1
    shipped = scores["shipped"]["clean-plate"]
    assert (
        shipped["environment"]["observation"] == "rgb"
        and f"{shipped['sr']['value']:.0f} of 1 right" in page
    )
    # Tensors, not files: the order of a safetensors file's metadata is random.
    weights = load_policy(out / "chameleon/policy").state_dict()
    monkeypatch.setattr(demo, "PAPER_TASKS", ())
    main()  # what is there is kept
    assert "is trained already" in capsys.readouterr().out
    again = load_policy(out / "chameleon/policy").state_dict()
    assert again.keys() == weights.keys()
    assert all(torch.equal(again[name], weight) for name, weight in weights.items())


def test_the_page_shows_the_scores() -> None:
    def summary(right: int) -> Summary:
        return Summary(
            Rate.of(30, 36), Rate.of(right, 30), Rate.of(right, 36), 1 / 3, {"<b>odd</b> reason": 6}
        )

    def metrics(seconds: float) -> list[dict[str, float]]:
        return [
            {"step": step, "seconds": seconds, "action": 1 / step, "decision_loss": 0.5 / step}
            for step in (10, 20, 1400)
        ]

    contenders = [
        Contender("with", summary(30), metrics(204.0), []),
        Contender("without", summary(10), metrics(70.0), []),
    ]
    page = demo_page("clean-plate", "Wipe.", contenders, ["`a fact`"])
    said = " ".join(page.partition("<h2>")[0].split())  # before the scores
    assert "3.4 minutes (1,400 steps) for with and 1.2 minutes (1,400 steps) for without" in said
    assert "z is the answer to remember: 0 is left" in page
    assert "100 [89, 100]" in page
    assert "33 [19, 51]" in page
    assert "&lt;b&gt;odd" in page
    assert page.count("Action loss, log scale") == 2  # the title, also for screen readers
    assert page.count("Decision loss, log scale") == 2
    assert "<code>a fact</code>" in page
    assert not re.findall(r"(?:src|href)=\"(?!data:|#)", page)
    untrained = [replace(contender, metrics=[]) for contender in contenders]
    assert "no metrics yet" in demo_page("clean-plate", "Wipe.", untrained, [])
