"""Tables that are written from result files: what they say, and that the documents have the
newest.
"""

from __future__ import annotations

import pytest

from benchmarks import tables
from benchmarks.tables import ROOT, TABLES, replaced
from chameleon_policy.rates import Rate


@pytest.mark.parametrize("marker", TABLES)
def test_writing_a_table_again_changes_nothing(marker: str) -> None:
    page = (ROOT / TABLES[marker].page).read_text()
    assert replaced(page, f"<!-- table: {marker} -->", TABLES[marker].text()) == page


def asked(method: str, task: str, seed: int, *, steps: int = 2500, **scores: int) -> dict:
    """A row of the delayed question: how many of 100 are right, by what was shown."""
    training = {
        "steps": steps,
        "batch": 8,
        "optimizer": "adamw",
        "learning_rate": 1e-3,
        "precision": "float32",
    }
    return {"method": method, "task": task, "seed": seed, "scores": of_100(scores), **training}


def of_100(scores: dict[str, int]) -> dict:
    return {count: Rate.of(right, 100).as_dict() for count, right in scores.items()}


def test_delayed_questions() -> None:
    """Every seed by itself, in order; what was not trained is a dash; of items, only the most that
    were shown; results of two files in one table, and trainings of different length or precision in
    columns of their own.
    """
    rows = [
        asked("chameleon", "question-4", 0, **{"1": 100, "4": 97}),
        asked("lstm", "question-4", 1, **{"1": 99, "4": 26}),
        asked("lstm", "question-4", 0, **{"1": 99, "4": 30}),
        asked("chameleon", "tracking", 0, **{"4": 98, "6": 40}),
    ]
    others = [
        asked("chameleon", "question-4", 1, steps=5000, **{"4": 100}),
        {**asked("lstm", "question-4", 1, **{"4": 27}), "precision": "bf16"},
    ]
    assert tables.delayed_question({"rows": rows}, {"rows": others}).splitlines() == [
        "| method | question, 4 items (2,500 steps of 8, float32) | tracking, 4 swaps (2,500 steps of 8, float32) "
        "| tracking, 6 swaps (2,500 steps of 8, float32) | question, 4 items (5,000 steps of 8, float32) "
        "| question, 4 items (2,500 steps of 8, bf16) |",
        "|---|---|---|---|---|---|",
        "| `lstm` | 30, 26 | - | - | - | 27 |",
        "| `chameleon` | 97 | 98 | 40 | 100 | - |",
    ]
    with pytest.raises(ValueError, match="one table, one optimizer"):
        tables.delayed_question({"rows": [*rows, {**rows[0], "optimizer": "muon"}]})


def test_emptied_memories() -> None:
    """Methods in their order; those that were not emptied are left out."""

    def row(method: str, seed: int, score: int, **left: int) -> dict:
        emptied = {part: of_100({"4": right}) for part, right in left.items()}
        return {**asked(method, "question-4", seed, **{"4": score}), "emptied": emptied}

    rows = [
        row("chameleon", 1, 94, traces=24, working=93),
        row("chameleon", 0, 100, traces=26, working=99),
        row("chameleon-without-limit", 0, 100, traces=80, working=30),
        row("lstm", 0, 25),
    ]
    assert tables.emptied({"rows": rows[:1]}, {"rows": rows[1:]}).splitlines() == [
        "| asked | method | whole memory | traces emptied | working state emptied |",
        "|---|---|---|---|---|",
        "| question, 4 items (2,500 steps of 8, float32) | `chameleon-without-limit` | 100 | 80 | 30 |",
        "| question, 4 items (2,500 steps of 8, float32) | `chameleon` | 100, 94 | 26, 24 | 99, 93 |",
    ]


def test_half_lives() -> None:
    row = {
        "policy": "nano, untrained",
        "layer": "fast",
        "set_to": [1.0, 16.0],
        "limit": None,
        "quantiles": [0.59, 2.4, 66.13, 1518.3, 2e9],
        "above_64": 0.254,
    }
    assert tables.half_lives({"rows": [row]}).splitlines()[2] == (
        "| nano, untrained | fast | 1 to 16 | - | 0.59 / 2.4 / 66.1 / 1,518 / > 1,000,000 | 25% |"
    )


def test_small_cards() -> None:
    row = {
        "card": "sm_86",
        "names": "RTX 3090",
        "preset": "paper",
        "kernels": ["a", "b"],
        "card_kib": 99,
        "shared_kib": 92.0,
        "largest": "b",
        "registers": 255,
        "spilled_bytes": 0,
        "most_spilled": "a",
    }
    assert (
        tables.small_cards({"rows": [row]}).splitlines()[2]
        == "| sm_86: RTX 3090 | `paper` | 2 | 92 of 99 (`b`) | 255 | 0 |"
    )
