"""From nothing to a score in one command, in miniature; and again, from what is there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chameleon_policy.cli import main
from chameleon_policy.experiments import reproduce


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(reproduce, "HELD_OUT", 2)
    monkeypatch.setattr(reproduce, "HELD_OUT_EVALUATIONS", 2)
    monkeypatch.setattr(reproduce, "RESULTS", tmp_path)
    monkeypatch.chdir(tmp_path)
    words = "reproduce camo --task clean-plate --task shell-game --minutes 0.02 --demonstrations 3"
    words += " --preset nano --image-size 32 --episodes 1"
    return ["chameleon", *words.split(), "--workers", "1", "--device", "cpu"]


def test_frames_are_counted_as_they_are_shown(tmp_path: Path) -> None:
    """Count frames of two tasks, one with episodes three times as long.

    With equal frames, there are three short episodes for a long one.
    """
    for task, length in (("clean-plate", 50), ("seasonings", 150)):
        info = tmp_path / "data" / task / "meta/info.json"
        info.parent.mkdir(parents=True)
        info.write_text(json.dumps({"total_frames": 4 * length, "total_episodes": 4}))
    (tmp_path / "run").mkdir()
    config = reproduce.Reproduction(suite="camo", tasks=("clean-plate", "seasonings"))
    for equal_frames, frames in ((False, 100), (True, 75)):
        training = {"batch": 2, "equal_frames": equal_frames}
        (tmp_path / "run/run.json").write_text(json.dumps({"training": training}))
        assert reproduce._frames_per_step(config, tmp_path) == 2 * frames


def test_what_was_published_is_reproduced() -> None:
    """Without a choice, the tasks are those of the published scores."""
    usual = reproduce.Reproduction(suite="camo")
    assert list(reproduce.published(usual)["tasks"]) == list(usual.tasks)
    assert usual.name == "camo"
    assert reproduce.Reproduction(suite="camo", tasks=("pantry",)).name == "pantry"


def test_from_nothing_to_a_score_and_again(
    command: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.argv", command)
    main()
    said = capsys.readouterr().out
    assert "published" in said and "reproduce-clean-plate-shell-game/scores.json" in said
    file = tmp_path / "runs/reproduce-clean-plate-shell-game/scores.json"
    document = json.loads(file.read_text())
    scores = document["result"]
    assert document["seeds"] == [1_000_000_000] and document["command"].startswith(
        "chameleon reproduce camo"
    )
    assert list(scores["tasks"]) == ["clean-plate", "shell-game"]
    assert [each["episodes"] for each in scores["tasks"].values()] == [1, 1]
    assert scores["demonstrations"] == 3 and scores["preset"] == "nano"
    assert 0 < scores["minutes"] < 1 and scores["looks"]
    span = json.loads((file.parent / "run/run.json").read_text())["statistics"]["proprioception"]
    # y of the tool, in the mirror too
    assert span["low"][1] == pytest.approx(-span["high"][1]) and span["low"][0] > 0
    assert (file.parent / "policy/model.safetensors").is_file()
    steps = {each["euler_steps"] for each in scores["tasks"].values()}
    assert (
        steps
        == {
            json.loads((file.parent / "policy/config.json").read_text())["config"]["sampling_steps"]
        }
        == {8}
    )
    # Again, with published scores: nothing is left to do.
    rate = {"value": 0.5, "low": 0.1, "high": 0.9, "count": 10}
    tasks = {"clean-plate": {"msr": rate, "dsr": rate, "sr": rate}}
    track = {"preset": "small", "image_size": 64, "minutes": 9.04, "steps": 4321, "tasks": tasks}
    published = {"result": {"demonstrations": 600, "tasks": {}, "tracks": {"3": track}}}
    (tmp_path / "camo-chameleon.json").write_text(json.dumps(published))
    played: list[str] = []

    def score_again(config: object, task: str, *_: object) -> dict:
        played.append(task)
        return scores["tasks"][task]

    monkeypatch.setattr(reproduce, "_score", score_again)
    main()
    assert played == []
    said = capsys.readouterr().out
    assert "50 [10, 90]" in said and "is trained already" in said
    assert said.index("here") < said.index("published") and "4,321 steps" in " ".join(said.split())
    # A task whose scores were made in another way is played again.
    other = {
        **scores["tasks"],
        "clean-plate": {**scores["tasks"]["clean-plate"], "euler_steps": 50},
    }
    file.write_text(json.dumps({**document, "result": {**scores, "tasks": other}}))
    main()
    assert played == ["clean-plate"]
    assert json.loads(file.read_text())["result"] == scores
    monkeypatch.setattr("sys.argv", [*command, "--demonstrations", "6"])
    with pytest.raises(SystemExit):
        main()
    assert "holds other demonstrations" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (["--task", "soup"], "soup"),
        (["--task", "shell-game"], "each task once"),
        (["--episodes", "0"], "--episodes must be at least 1"),
        (["--minutes", "0"], "--minutes must be positive"),
        (["--image-size", "33"], "image_size must be even"),
        (["--seed", "9999"], "seed"),
        (["--workers", "0"], "workers must be at least 1"),
    ],
)
def test_mistakes(
    command: list[str],
    wrong: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.argv", [*command, *wrong])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2 and message in capsys.readouterr().err
    assert not list(Path("runs").rglob("*.parquet"))
