"""The toys of delayed questions: evidence, answers, and a decision that gives nothing away."""

from __future__ import annotations

import json
import math
from concurrent.futures import Future

import pytest
import torch

from benchmarks import delayed_question
from benchmarks.delayed_question import (
    ANSWER_STEPS,
    KINDS,
    TOYS,
    Toy,
    make_policy,
    score,
    train,
)
from chameleon_policy.policy import MemoryState, Observation
from chameleon_policy.train.config import TrainingConfig

LIT_UP = 0.5


def episodes(
    toy: Toy, count: int, episodes: int = 50, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    batch, answer = toy.episodes(
        torch.full((episodes,), count), torch.Generator().manual_seed(seed)
    )
    return batch.observation.objects[..., 2:] > LIT_UP, answer


@pytest.mark.parametrize("slots", [4, 6])
@pytest.mark.parametrize("shown", [1, 4])
def test_question(slots: int, shown: int) -> None:
    """Read the observations step by step, as a person would."""
    toy = TOYS[f"question-{slots}"]
    for objects, answer in zip(*episodes(toy, shown), strict=True):
        colour_of: dict[int, int] = {}
        for moment in objects[: toy.decision, :slots]:
            for slot, colour in moment.nonzero().tolist():
                assert colour_of.setdefault(slot, colour) == colour
        assert len(colour_of) == len(set(colour_of.values())) == shown, "as many slots as colours"
        asked = {
            colour
            for moment in objects[toy.decision :, slots]
            for (colour,) in moment.nonzero().tolist()
        }
        assert [slot for slot, colour in colour_of.items() if {colour} == asked] == [answer]
        assert not objects[: toy.decision, slots].any(), "the question comes last"
        assert not objects[toy.decision - delayed_question.WAIT : toy.decision].any(), (
            "a blank in between"
        )
        assert not objects[toy.decision :, :slots].any(), "nothing but the question at the decision"


@pytest.mark.parametrize("swaps", [0, 1, 4, 6])
def test_tracking(swaps: int) -> None:
    toy = TOYS["tracking"]
    for objects, answer in zip(*episodes(toy, swaps), strict=True):
        place, happened = None, 0
        for step, moment in enumerate(objects):
            for slot in moment[:, 0].nonzero().flatten().tolist():
                assert place in (None, slot), "a cue stays where it is"
                place = slot
            pair = moment[:, 1].nonzero().flatten().tolist()
            if pair and not objects[step - 1, :, 1].any():  # a mark begins
                happened += 1
                place = {pair[0]: pair[1], pair[1]: pair[0]}.get(place, place)
        assert happened == swaps
        assert place == answer
        assert not objects[toy.decision - delayed_question.STILL :].any()


@pytest.mark.parametrize("name", TOYS)
def test_answers_are_fair_and_scored_where_they_are_due(name: str) -> None:
    toy = TOYS[name]
    batch, answer = toy.episodes(
        torch.full((2000,), toy.scored[-1]), torch.Generator().manual_seed(1)
    )
    shares = torch.bincount(answer, minlength=toy.answers) / len(answer)
    assert shares.max() < 1 / toy.answers + 0.06
    assert torch.equal(batch.emphasis[0] > 0, torch.arange(toy.time) >= toy.decision)
    assert batch.emphasis[0].sum() == ANSWER_STEPS
    torch.testing.assert_close(batch.actions[:, -1], toy.places[answer])
    assert not batch.actions[:, : toy.decision].any()


@pytest.mark.parametrize("method", KINDS)
def test_every_method_trains_and_is_scored(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delayed_question, "SCORED", 20)
    toy = TOYS["question-4"]
    policy = make_policy(method, toy, 0)
    assert (policy.config.fast.half_life_limit is None) == (method == "chameleon-without-limit")
    ((step, rates),) = train(policy, toy, TrainingConfig(steps=2, batch=8))
    assert step == 2 and [rate.count for rate in rates] == [20] * len(toy.scored)


def test_a_score_counts_nearest_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delayed_question, "SCORED", 40)
    toy = TOYS["question-4"]
    policy = make_policy("chameleon", toy, 0)
    _, answer = toy.episodes(torch.full((40,), 4), torch.Generator().manual_seed(5))
    for wrong in (0, 10):
        given = torch.where(torch.arange(40) < wrong, (answer + 1) % 4, answer)
        chunk = 0.8 * toy.places[given].unsqueeze(1).expand(-1, 4, -1)
        monkeypatch.setattr(policy, "act", lambda *_, chunk=chunk, **__: chunk)
        assert score(policy, toy, 4, torch.Generator().manual_seed(5)).value == 1 - wrong / 40


def test_an_emptied_part_is_gone_when_the_question_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty the memory before the last observation, which is then added to the rest."""
    monkeypatch.setattr(delayed_question, "SCORED", 3)
    toy = TOYS["question-2"]
    policy = make_policy("chameleon", toy, 0)
    states: list[tuple[int, MemoryState]] = []
    advance = policy.advance

    def noted(seen: Observation, state: MemoryState) -> MemoryState:
        states.append((seen.proprioception.shape[1], state))
        return advance(seen, state)

    monkeypatch.setattr(policy, "advance", noted)
    for emptied in (None, "traces", "working"):
        states.clear()
        score(policy, toy, 2, torch.Generator().manual_seed(0), emptied)
        (first, _), (last, remembered) = states
        assert (first, last) == (toy.decision, 1)
        for layer in remembered.layers:
            assert bool(layer.slow.ssm.any()) == (emptied != "traces")
            assert bool(layer.fast.ssm.any()) == (emptied != "working")


def test_rows_of_the_file_are_kept(tmp_path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    out = tmp_path / "rows.json"
    row = {
        "method": "lstm",
        "task": "tracking",
        "seed": 0,
        "steps": 5,
        "batch": 64,
        "optimizer": "adamw",
        "learning_rate": 7e-4,
        "precision": "float32",
    }
    out.write_text(json.dumps({"result": {"rows": [row]}}))
    monkeypatch.setattr(delayed_question, "run", None)  # nothing is trained
    delayed_question.main(out, methods=("lstm",), tasks=("tracking",), seeds=(0,), steps=5)
    assert "1 rows" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="there is no 'gru'; choose from lstm"):
        delayed_question.main(out, methods=("gru",))


def test_a_training_that_fails_or_has_no_time_left_does_not_end_the_others(
    tmp_path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    class Inline:
        def __init__(self, *_: object, **__: object) -> None: ...
        def __enter__(self) -> Inline:
            return self

        def __exit__(self, *_: object) -> None: ...
        def submit(self, function, *arguments):
            future: Future = Future()
            try:
                future.set_result(function(*arguments))
            except RuntimeError as error:
                future.set_exception(error)
            return future

    def run(
        method: str, task: str, config: TrainingConfig, device: str, deadline: float
    ) -> dict | None:
        if method == "lstm":
            raise RuntimeError("out of memory")
        return None if method == "brief" else {"method": method, "task": task}

    monkeypatch.setattr(delayed_question, "ProcessPoolExecutor", Inline)
    monkeypatch.setattr(delayed_question, "run", run)
    out = tmp_path / "rows.json"
    with pytest.raises(SystemExit, match="1 trainings failed, 1 had no time left"):
        delayed_question.main(
            out, methods=("lstm", "brief", "chameleon"), tasks=("tracking",), seeds=(0,)
        )
    assert [row["method"] for row in json.loads(out.read_text())["result"]["rows"]] == ["chameleon"]
    assert "a training failed: out of memory" in capsys.readouterr().out


def test_a_training_stops_at_the_deadline(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(delayed_question, "SCORED", 20)
    monkeypatch.setattr(delayed_question, "EVALUATE_EVERY", 1)
    config = TrainingConfig(steps=2, batch=8)
    assert delayed_question.run("chameleon", "question-2", config, "cpu", deadline=0.0) is None
    row = delayed_question.run("chameleon", "question-2", config, "cpu", deadline=math.inf)
    assert row is not None and row["precision"] == "float32"
    assert [look["step"] for look in row["looks"]] == [1, 2]
    assert set(row["emptied"]) == {"traces", "working"}
    assert set(row["emptied"]["traces"]) == set(row["scores"])
    assert "question-2 chameleon seed 0 step 1" in capsys.readouterr().out
