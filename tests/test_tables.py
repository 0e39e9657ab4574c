"""Tables come from result files, the documents have the newest, and results are the code's."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks import parameters
from benchmarks.delayed_question import EMPTIED, KINDS
from benchmarks.tables import memory, speed
from benchmarks.tables.__main__ import TABLES
from benchmarks.tables.layout import RESULTS, ROOT, read_result, replaced
from chameleon_policy.policy.places import SHIPPED
from chameleon_policy.rates import Rate
from chameleon_policy.report.charts import svg
from chameleon_policy.report.comparison.rendering import draw_tables
from chameleon_policy.report.probe_figures import charts


@pytest.mark.parametrize("name", TABLES)
def test_writing_a_table_again_changes_nothing(name: str) -> None:
    for page in TABLES[name].pages:
        text = (ROOT / page).read_text()
        assert replaced(text, name, TABLES[name].text()) == text, "run `make tables`"


def test_every_marker_has_a_table() -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *SHIPPED.glob("*/README.md")]
    for page in pages:
        name = str(page.relative_to(ROOT))
        for marker in re.findall(r"^<!-- table: ([\w-]+) -->$", page.read_text(), re.MULTILINE):
            assert name in TABLES[marker].pages, f"{name}: {marker}"


def test_a_table_is_replaced_below_its_marker() -> None:
    page = "before\n\n<!-- table: one -->\n| old |\n| older |\n\nafter\n"
    expected = "before\n\n<!-- table: one -->\n| new |\n\nafter\n"
    assert replaced(page, "one", "| new |") == expected
    with pytest.raises(ValueError, match="has no line"):
        replaced(page, "two", "| new |")


def test_results_are_those_of_the_code() -> None:
    assert read_result("parameters.json") == parameters.sizes()
    assert read_result("method-parameters.json") == parameters.methods()
    weights = (SHIPPED / "camo-small/model.safetensors").read_bytes()
    published = read_result("camo-chameleon.json")["policy_sha256"]
    assert hashlib.sha256(weights).hexdigest() == published


def test_pages_of_the_bench_are_drawn_from_its_rows(tmp_path: Path) -> None:
    draw_tables(tmp_path / "camo-table.json", read_result("camo-table.json"), Console(quiet=True))
    for drawn in tmp_path.iterdir():
        assert drawn.read_text() == (RESULTS / drawn.name).read_text(), (
            f"chameleon bench camo --table-only: {drawn.name}"
        )


@pytest.mark.parametrize("file", ["probes", "probes-nano"])
def test_figures_of_probes_are_drawn_from_their_findings(file: str) -> None:
    for name, figure in charts(read_result(f"{file}.json")["findings"]).items():
        assert (RESULTS / f"{file}-{name}.svg").read_text() == svg(figure), (
            f"chameleon probe --found-only: {name}"
        )


def asked(method: str, task: str, seed: int, *, steps: int = 2500, **scores: int) -> dict:
    """Return a row of the delayed question; `scores` counts right answers out of 100."""
    training = {
        "steps": steps,
        "batch": 8,
        "optimizer": "adamw",
        "learning_rate": 1e-3,
        "precision": "float32",
    }
    return {"method": method, "task": task, "seed": seed, "scores": of_100(scores), **training}


def test_methods_of_delayed_questions_are_known() -> None:
    assert set(memory.METHODS) == set(KINDS) and EMPTIED == ("traces", "working")


def of_100(scores: dict[str, int]) -> dict:
    return {count: Rate.of(right, 100).as_dict() for count, right in scores.items()}


def test_delayed_questions() -> None:
    """List seeds in order, dashes for missing runs, and a column for each way of training."""
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
    assert memory.delayed_question({"rows": rows}, {"rows": others}).splitlines() == [
        "| method | question, 4 items (2,500 steps of 8, AdamW 0.001, float32) "
        "| tracking, 4 swaps (2,500 steps of 8, AdamW 0.001, float32) "
        "| tracking, 6 swaps (2,500 steps of 8, AdamW 0.001, float32) "
        "| question, 4 items (5,000 steps of 8, AdamW 0.001, float32) "
        "| question, 4 items (2,500 steps of 8, AdamW 0.001, bf16) |",
        "|---|---|---|---|---|---|",
        "| `lstm` | 30, 26 | - | - | - | 27 |",
        "| `chameleon` | 97 | 98 | 40 | 100 | - |",
    ]
    both = memory.delayed_question({"rows": [*rows, {**rows[0], "optimizer": "muon"}]})
    assert "AdamW" in both and "Muon" in both, "other optimizers have a column of their own"


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
    asked_for = "question, 4 items (2,500 steps of 8, AdamW 0.001, float32)"
    assert memory.emptied({"rows": rows[:1]}, {"rows": rows[1:]}).splitlines() == [
        "| asked | method | whole memory | traces emptied | working state emptied |",
        "|---|---|---|---|---|",
        f"| {asked_for} | `chameleon-without-limit` | 100 | 80 | 30 |",
        f"| {asked_for} | `chameleon` | 100, 94 | 26, 24 | 99, 93 |",
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
    assert memory.half_lives({"rows": [row]}).splitlines()[2] == (
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
    expected = "| sm_86: RTX 3090 | `paper` | 2 | 92 of 99 (`b`) | 255 | 0 |"
    assert speed.small_cards({"rows": [row]}).splitlines()[2] == expected
