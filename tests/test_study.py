"""`chameleon probe` and `chameleon report` at a small size: files, resuming, pages and errors."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from chameleon_policy import ChameleonPolicy, Features, ObjectSlots, Range, Statistics
from chameleon_policy.baselines import METHODS
from chameleon_policy.camo import task_named
from chameleon_policy.camo.settings import CamoSettings
from chameleon_policy.cli import main
from chameleon_policy.probes import study as module
from chameleon_policy.probes import theatre
from chameleon_policy.probes.addressability import INTERVENTIONS, paper_edits
from chameleon_policy.probes.study import (
    Study,
    StudyContext,
    earlier_findings,
    name_of,
    probe_runs,
    tasks_of,
)
from chameleon_policy.report import paper, run_report
from chameleon_policy.report.probe_figures import BEFORE, embed, publish
from chameleon_policy.report.probe_tables import leads, tables
from examples import nano
from theatre_browser import Open, bars, state

SMALL = Study(fitted=6, asked=3, episodes=1, steps=1)
STATISTICS = Statistics(action=Range(low=(-1.0,) * 10, high=(1.0,) * 10))
SLOTS = Features(objects=ObjectSlots(count=5, size=7), proprioception=10, action=10, horizon=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save two untrained policies in a folder that will also hold the demonstrations."""
    out = tmp_path_factory.mktemp("probes")
    for seed, (name, method) in enumerate((("one", "chameleon"), ("two", "no-jepa"))):
        torch.manual_seed(seed)
        METHODS[method](nano(), SLOTS, STATISTICS).save_pretrained(out / name)
    return out


@pytest.fixture(scope="module")
def findings(folder: Path) -> Iterator[list[dict]]:
    """Probe both runs; edit the memories of the first one only, because that takes longest."""
    few = [
        each
        for each in INTERVENTIONS
        if each.name in (*paper_edits("decoded"), *paper_edits("attended"), "Own memory")
    ]
    context = StudyContext(
        out=folder / "found", command="chameleon probe one two", device="cpu", workers=1
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "INTERVENTIONS", few)
        yield [
            *probe_runs([folder / "one"], ("clean-plate",), (), SMALL, context),
            *probe_runs([folder / "two"], ("clean-plate",), ("none",), SMALL, context),
        ]


def edited(findings: list[dict]) -> list[dict]:
    """Return the findings as if the memories of both runs had been edited, with equal outcomes."""
    one, two = findings
    return [one, {**two, "addressability": one["addressability"]}]


def test_a_finding_for_each_run_and_task(findings: list[dict], folder: Path) -> None:
    assert [(each["run"], each["method"], each["task"]) for each in findings] == [
        ("one", "chameleon", "clean-plate"),
        ("two", "no-jepa", "clean-plate"),
    ]
    for finding in findings:
        assert (
            finding["separability"]["memory"]["count"] == 3
            and finding["scores"]["msr"]["count"] == 1
        )
        assert {"command", "hardware", "git_revision", "duration_s"} <= set(finding)
    rows = {row["name"]: row for row in findings[0]["addressability"]["rows"]}
    assert next(iter(rows)) == "Full" and rows["Own memory"]["same_actions"] == 1
    assert findings[1]["addressability"] is None
    document = json.loads((folder / "found/one/clean-plate.json").read_text())
    assert document["seeds"] == [1_000_000_000]
    with np.load(folder / "found/one/clean-plate.npz") as saved:
        assert len(saved["working"]) == saved["lengths"].sum() and saved["answers"].shape == (3, 1)


def test_finished_findings_are_not_measured_again(
    findings: list[dict], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "gather_material", lambda *_: pytest.fail("measured again"))
    context = StudyContext(out=folder / "found", command="again", device="cpu", workers=1)
    runs = [folder / "one", folder / "two"]
    assert probe_runs(runs, ("clean-plate",), ("none",), SMALL, context) == findings
    assert probe_runs(runs[:1], ("clean-plate",), (), SMALL, context) == findings[:1]
    with pytest.raises(pytest.fail.Exception, match="measured again"):  # its memories, this time
        probe_runs(runs, ("clean-plate",), (), SMALL, context)
    with pytest.raises(ValueError, match="made with other settings"):
        probe_runs(runs, ("clean-plate",), (), replace(SMALL, fitted=7), context)
    assert earlier_findings(runs, (), folder / "found") == findings
    torch.manual_seed(9)
    METHODS["chameleon"](nano(), SLOTS, STATISTICS).save_pretrained(folder / "other" / "one")
    with pytest.raises(ValueError, match="about a policy with other weights"):
        probe_runs([folder / "other" / "one"], ("clean-plate",), (), SMALL, context)
    with pytest.raises(
        ValueError, match=r"has no findings for one, two yet; leave out --found-only"
    ):
        earlier_findings(runs, ("seasonings",), folder / "found")
    damaged = folder / "damaged" / "one" / "clean-plate.json"
    damaged.parent.mkdir(parents=True)
    damaged.write_text("{}")
    with pytest.raises(ValueError, match="is no finding of a probe"):
        probe_runs(
            runs[:1], ("clean-plate",), (), SMALL, StudyContext(out=folder / "damaged", command="")
        )


def test_tables_show_the_papers_numbers(findings: list[dict]) -> None:
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: PTH123, SIM115
    for table in tables([{**finding, "task": "seasonings"} for finding in edited(findings)]):
        console.print(table)
    shown = console.export_text()
    for number in (
        *paper.SEPARABILITY["seasonings"],
        *(f"{value:.0f}" for value in paper.ADDRESSABILITY.values()),
    ):
        assert str(number) in shown
    assert re.search(r"Mask\+ +│.*│ +40 │", shown)


def test_leads_of_the_first_run() -> None:
    def finding(run: str, ready: int | None) -> dict:
        line = [
            {"step": step, "value": float(ready is not None and step >= ready)}
            for step in range(-30, 9)
        ]
        return {
            "run": run,
            "task": "t",
            "prospectiveness": {"threshold": 0.8, "working": line, "traces": line},
        }

    found = leads([finding("a", -20), finding("b", -3), finding("c", None), finding("d", 5)])
    assert found == {("b", "t"): 17, ("c", "t"): None, ("d", "t"): 25}


def test_figures_and_the_json(
    findings: list[dict], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # UMAP itself compiles for half a minute; a slow test uses it.
    monkeypatch.setattr("umap.UMAP", FirstThree)
    findings = edited(findings)
    written = publish(
        findings, folder / "found", tmp_path / "probes.json", "the command", Console(quiet=True)
    )
    assert {path.name for path in written} == {
        "probes.json",
        "probes-over-time-clean-plate.svg",
        "probes-before-decision-clean-plate.svg",
        "probes-decoded-traces-clean-plate.svg",
        "probes-attended-traces-clean-plate.svg",
        "probes-trajectories-clean-plate.svg",
    }
    for path in written[1:]:
        assert ElementTree.parse(path).getroot().tag.endswith("svg")
        assert "nan" not in path.read_text()
    drawing = (tmp_path / "probes-trajectories-clean-plate.svg").read_text()
    assert "3 episodes, the last 24 steps before the first decision" in drawing
    document = json.loads((tmp_path / "probes.json").read_text())
    assert document["command"] == "the command" and document["result"]["findings"] == findings


class FirstThree:
    """A stand-in for UMAP that returns the first three dimensions."""

    def __init__(self, **options: int) -> None:
        assert options["n_components"] == 3

    def fit_transform(self, rows: np.ndarray) -> np.ndarray:
        return rows[:, :3]


@pytest.mark.slow
def test_trajectories_of_different_answers_are_separate(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    answers = np.arange(30)[:, None] % 3
    working = rng.normal(size=(30, 40, 8)) * 0.1 + np.eye(8)[answers[:, 0]][:, None]
    np.savez(
        tmp_path / "h.npz",
        working=working.reshape(-1, 8),
        lengths=np.full(30, 40),
        decisions=np.full(30, 30),
        answers=answers,
    )
    points, told = embed(tmp_path / "h.npz")
    assert points.shape == (30, BEFORE, 3) and told.tolist() == answers[:, 0].tolist()
    centres = np.stack([points[told == answer].mean((0, 1)) for answer in range(3)])
    spread = max(points[told == answer].std() for answer in range(3))
    assert (
        min(
            np.linalg.norm(centres[one] - centres[other]) for one, other in ((0, 1), (0, 2), (1, 2))
        )
        > spread
    )


def test_runs_are_named_by_their_folders(folder: Path) -> None:
    assert name_of(Path("runs/x/policy")) == "x" and name_of("camo-small") == "camo-small"
    with pytest.raises(ValueError, match="names of their own"):
        probe_runs(
            [folder / "one", folder / "one"], (), (), SMALL, StudyContext(out=folder, command="")
        )


def test_tasks_that_a_policy_plays(folder: Path) -> None:
    # five slots each
    assert list(tasks_of(folder / "one", (), "cpu")) == ["clean-plate", "seasonings"]
    with pytest.raises(ValueError, match="shell-game has 6 object slots"):
        tasks_of(folder / "one", ("shell-game",), "cpu")
    with pytest.raises(ValueError, match="no task"):
        tasks_of(folder / "one", ("nonsense",), "cpu")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "name at least one run"),
        (["{lstm}", "--task", "clean-plate"], "and this is another method"),
        (["{told}", "--task", "clean-plate"], "trained with the answer in its observations"),
        (["{one}", "--episodes", "0"], "--episodes must be at least 1, got 0"),
        (["{one}", "--shown", "13"], "--shown must be at most --episodes (12), got 13"),
        (["{one}", "--surgery", "nonsense"], "no task"),
        (["nowhere"], "nowhere"),
        (["{similarity}", "--task", "clean-plate"], "similarity keeps no trace for every token"),
        (
            ["{vanilla-mamba}", "--task", "clean-plate"],
            "vanilla-mamba keeps no trace for every token",
        ),
        (["{untrained}", "--task", "clean-plate"], "without statistics of its actions"),
        (
            ["{one}", "--task", "shell-game", "--task", "clean-plate"],
            "shell-game has 6 object slots",
        ),
        (["{one}", "{one}"], "runs need names of their own"),
    ],
)
def test_bad_input(
    options: list[str],
    message: str,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys,
) -> None:
    places = {
        name: tmp_path / name
        for name in ("lstm", "similarity", "vanilla-mamba", "told", "untrained")
    }
    for method in ("lstm", "similarity", "vanilla-mamba"):
        METHODS[method](nano(), SLOTS, STATISTICS).save_pretrained(places[method])
    told = Features(objects=SLOTS.objects, proprioception=13, action=10, horizon=4)
    ChameleonPolicy(nano(), told, STATISTICS).save_pretrained(places["told"])
    ChameleonPolicy(nano(), SLOTS).save_pretrained(places["untrained"])
    named = [option.format(**places, one=folder / "one") for option in options]
    for command in ("probe", "report"):
        if ("--surgery" in named and command == "report") or (
            "--shown" in named and command == "probe"
        ):
            continue  # the other command has no such option
        monkeypatch.setattr(
            "sys.argv",
            ["chameleon", command, *named, "--out", str(tmp_path / "out"), "--device", "cpu"],
        )
        with pytest.raises(SystemExit) as stopped:
            main()
        assert stopped.value.code == 2 and message in capsys.readouterr().err


def test_a_report(
    findings: list[dict],
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    show: Open,
) -> None:
    monkeypatch.setattr(run_report, "CLIP_SIZE", 64)
    edits = dict(list(theatre.EDITS.items())[:2])  # each plays the episode again
    for room in (theatre, run_report):
        monkeypatch.setattr(room, "EDITS", edits)
    sizes = {"episodes": 1, "shown": 1, "fitted": 4, "steps": 1, "workers": 1}
    options = [
        "--task",
        "clean-plate",
        "--device",
        "cpu",
        *(f"--{name}={value}" for name, value in sizes.items()),
    ]
    recording = tmp_path / "theatre.rrd"
    monkeypatch.setattr(
        "sys.argv",
        [
            "chameleon",
            "report",
            str(folder / "one"),
            *options,
            "--out",
            str(tmp_path / "page"),
            "--rerun",
            str(recording),
            "--probes",
            str(folder / "found"),
        ],
    )
    main()
    assert (
        f"Open it in a browser: {(tmp_path / 'page/index.html').as_uri()}"
        in capsys.readouterr().out
    )
    page = (tmp_path / "page/index.html").read_text()
    data = re.search(
        r'<script type="application/json" id="episode-0">(.*?)</script>', page, re.DOTALL
    )
    assert data is not None
    episode = json.loads(data[1])
    assert episode["task"] == "clean-plate" and episode["beliefs"][0]["choices"] == [
        "left",
        "middle",
        "right",
    ]
    shown = [each["name"] for each in episode["counterfactuals"]]
    assert shown == ["as it was", "swap the relevant traces"]
    assert episode["layout"]["others"] == [
        *(f"object {number}" for number in range(1, 6)),
        "body",
        "",
    ]
    env = CamoSettings(task="clean-plate", observation="state").make_env()
    env.reset(seed=episode["seed"])
    assert episode["decisions"] == [env.decision_step]
    # Both passes give the same beliefs at the decision.
    before = episode["beliefs"][0]["shares"][env.decision_step]
    assert (
        before == episode["counterfactuals"][0]["shares"]
        and len(episode["positions"]) == episode["steps"]
    )
    assert "before decision clean plate" in page and "attended traces clean plate" in page
    assert episode["answer"] == ("left", "middle", "right")[env.z]
    scores = json.loads((tmp_path / "page/scores.json").read_text())["result"]["runs"]["one"][
        "clean-plate"
    ]
    assert scores["msr"]["count"] == 1 and scores["chance"] == task_named("clean-plate")().chance
    assert recording.read_bytes()[:3] == b"RRF"
    opened = show(tmp_path / "page/index.html")
    opened.keyboard.press("d")
    assert state(opened, "step") == [env.decision_step]
    assert bars(opened, "#belief-bars") == pytest.approx(before, abs=0.01)


def test_a_rerun_recording_needs_its_suffix(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setattr(
        "sys.argv", ["chameleon", "report", str(folder / "one"), "--rerun", str(tmp_path / "x.mp4")]
    )
    with pytest.raises(SystemExit):
        main()
    assert "--rerun must name an .rrd file" in capsys.readouterr().err
