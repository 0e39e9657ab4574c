"""Tables that compare methods: their statistics, their cells, and the formats they come in."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from bench_rows import ALL, row
from chameleon_policy.rates import Rate, average, interval, mcnemar
from chameleon_policy.report.comparison import choices
from chameleon_policy.report.comparison.cells import Comparison
from chameleon_policy.report.comparison.methods import comparisons
from chameleon_policy.report.comparison.outcomes import Paired, episodes, paired, seed_interval
from chameleon_policy.report.comparison.rendering import (
    draw_tables,
    escape_latex,
    latex,
    markdown,
    page,
)
from chameleon_policy.report.paper import TABLE_1
from chameleon_policy.suite import SUITES


def cells(table: Comparison, name: str) -> dict[str, str]:
    """Return the cells of a method's line by the headings of their columns."""
    lines = [
        line
        for section in table.sections.values()
        for line in section
        if line.cells[0].value == name
    ]
    assert len(lines) == 1
    return {
        str(column): str(cell) for column, cell in zip(table.headings, lines[0].cells, strict=True)
    }


# Statistics.


@pytest.mark.parametrize(
    ("lost", "gained"), [(0, 0), (1, 0), (0, 3), (2, 2), (1, 9), (7, 4), (5, 6)]
)
def test_mcnemar_counts_all_coins_that_fall_as_unevenly(lost: int, gained: int) -> None:
    number = lost + gained
    falls = [
        abs(2 * sum(coins) - number) >= abs(lost - gained)
        for coins in itertools.product((0, 1), repeat=number)
    ]
    assert mcnemar(lost, gained) == pytest.approx(sum(falls) / len(falls))


def test_mcnemar_known_value() -> None:
    assert mcnemar(1, 9) == mcnemar(9, 1) == pytest.approx(0.021484375)
    assert mcnemar(700, 500) == pytest.approx(7e-9, rel=0.5)  # no overflow


def test_an_average_has_the_interval_of_mover() -> None:
    mean = average([Rate(0.5, 0.4, 0.7, 10), Rate(0.7, 0.4, 0.8, 20)])
    assert mean.value == pytest.approx(0.6) and mean.count == 30
    assert mean.low == pytest.approx(0.6 - (0.1**2 + 0.3**2) ** 0.5 / 2)
    assert mean.high == pytest.approx(0.6 + (0.2**2 + 0.1**2) ** 0.5 / 2)
    assert interval(average([Rate.of(0, 0), Rate.of(1, 2)])) == "-"


def test_pairs_are_episodes_that_both_have_played() -> None:
    ours = episodes([row(outcomes="ssww"), row(task="clean-plate", outcomes="ss")])
    other = [
        row("no-memory", outcomes="wsfs"),
        row("no-memory", task="clean-plate", outcomes="fw", seed=1),
    ]
    both = paired(ours, episodes(other))
    # not clean-plate: another seed of training
    assert both == Paired(episodes=4, lost=1, gained=1)
    assert both.difference == 0 and both.p == 1
    shifted = episodes([row("no-memory", outcomes="ssss", first_seed=10**9 + 3)])
    assert paired(ours, shifted) == Paired(episodes=1, lost=0, gained=1)
    assert paired(ours, episodes([row("no-memory", first_seed=10**9 + 50)])) is None


def test_the_papers_averages_are_those_of_its_tasks() -> None:
    for published in TABLE_1.values():
        for place, mean in ((0, published.dsr), (1, published.sr)):
            assert sum(task[place] for task in published.tasks) / 3 == pytest.approx(
                mean, abs=0.1
            ), published.name


def played(sr: dict[int, str], task: str = "shell-game") -> dict:
    """Return the outcomes of a method: training seed -> a letter for each episode."""
    return {
        (task, seed, number): letter == "s"
        for seed, letters in sr.items()
        for number, letter in enumerate(letters)
    }


def test_an_interval_over_seeds_knows_that_seeds_differ() -> None:
    """One method wins in one training and loses in another: episodes alone would call it."""
    reference = played({0: "s" * 100, 1: "s" * 100, 2: "s" * 100})
    other = played({0: "s" * 100, 1: "s" * 100, 2: "f" * 100})
    assert paired(reference, other).p < 1e-20
    low, high = seed_interval(reference, other)
    assert (low, high) == pytest.approx((-1.0, 0.0))
    both_worse = played(dict.fromkeys(range(3), "f" * 40 + "s" * 60))
    low, high = seed_interval(reference, both_worse)
    assert -0.52 < low < -0.45 and -0.35 < high < -0.28, "seeds agree: only episodes are uncertain"


def test_the_variance_over_seeds_is_unbiased() -> None:
    """The bootstrap's variance is that of a mean of seeds, s^2 / n, if episodes never differ."""
    successes = (100, 60, 20, 40)
    gains = [(100 - each) / 100 for each in successes]
    tasks = [f"task-{number}" for number in range(100)]  # of one episode, which is always drawn
    ours = {key: True for task in tasks for key in played(dict.fromkeys(range(4), "s"), task)}
    theirs = {
        (task, seed, 0): number < successes[seed]
        for number, task in enumerate(tasks)
        for seed in range(4)
    }
    low, high = seed_interval(ours, theirs)
    rng = np.random.default_rng(1)
    means = np.mean(rng.choice(gains, size=(200_000, 3)), axis=1)
    assert np.var(means) == pytest.approx(np.var(gains, ddof=1) / 4, rel=0.02)
    expected = -np.quantile(means, (0.975, 0.025))
    assert (low, high) == pytest.approx(tuple(expected), abs=0.02)


def test_an_interval_over_seeds_needs_two_whole_trainings() -> None:
    one = played({0: "ssff"})
    assert seed_interval(one, one) is None
    longer = played({0: "ssff", 1: "ssf"})
    assert seed_interval(longer, longer) is None, "seed 1 has not played the last episode"
    two = played({0: "ssff", 1: "sfsf"})
    assert seed_interval(two, two) == (0.0, 0.0)


# The tables.


def test_the_table_shows_the_rows_and_what_is_not_there() -> None:
    table = comparisons(
        [
            row(outcomes="s" * 80 + "w" * 10 + "f" * 10),
            row("no-memory", outcomes="s" * 30 + "w" * 70),
        ]
    )[0]
    ours, other, absent = (
        cells(table, name) for name in ("Chameleon", "w/o memory", "w/o Control-JEPA")
    )
    assert (
        ours["shell-game DSR (chance 1/3)"] == interval(Rate.of(80, 90))
        and ours["Parameters, M"] == "7.1"
    )
    assert ours["shell-game SR"] == interval(Rate.of(80, 100)) == "80 [71, 87]"
    assert ours["seasonings SR"] == ours["Average SR"] == "not run"
    assert (
        other["Against Chameleon SR, points"] == "-50 (100 pairs)"
        and other["Against Chameleon 95 % over seeds"] == "one seed"
        and other["Against Chameleon p"] == "< 0.001"
    )
    assert (
        ours["Paper DSR"] == "80.8"
        and absent["Paper SR"] == "52.8"
        and ours["Against Chameleon p"] == "reference"
    )
    assert all(
        value == "not run"
        for name, value in absent.items()
        if name != "Method" and not name.startswith("Paper")
    )
    assert all(
        text for name in ("Chameleon", "w/o memory", "LSTM") for text in cells(table, name).values()
    )
    assert cells(table, "LSTM")["Paper SR"] == "not in it"
    assert cells(table, "Diffusion Policy, U-Net")["Paper DSR"] == "22.5*"


def test_where_nobody_has_played_a_task_it_has_no_column() -> None:
    alone = {"trained_on": ["shell-game"], "preset": "nano"}
    table = comparisons([row(outcomes="ssfw", **alone), row("lstm", outcomes="ssss", **alone)])[0]
    ours = cells(table, "Chameleon")
    assert [name for name in ours if "plate" in name or "Average" in name or "Paper" in name] == []
    assert ours["shell-game MSR"] == interval(Rate.of(3, 4)) and ours["shell-game SR"] == interval(
        Rate.of(2, 4)
    )
    assert cells(table, "LSTM")["Against Chameleon SR, points"] == "+50 (4 pairs)"
    assert cells(table, "ACT")["shell-game SR"] == "not run"


def test_averages_over_all_tasks() -> None:
    outcomes = dict(zip(ALL, ("sssw", "ssff", "wwwf"), strict=True))
    table = comparisons([row(task=task, outcomes=each) for task, each in outcomes.items()])[0]
    mean = average([Rate.of(3, 4), Rate.of(2, 2), Rate.of(0, 3)])
    assert (
        cells(table, "Chameleon")["Average DSR"]
        == interval(mean)
        == f"58 {interval(mean).partition(' ')[2]}"
    )
    nothing = comparisons([row(task=task, outcomes="ffff") for task in ALL])[0]
    assert (
        cells(nothing, "Chameleon")["Average DSR"]
        == cells(nothing, "Chameleon")["clean-plate DSR (chance 1/3)"]
        == "-"
    )
    assert cells(nothing, "Chameleon")["Average MSR"].startswith("0 [0, ")


def test_episodes_of_several_trainings_are_pooled() -> None:
    table = comparisons(
        [
            row(outcomes="ssss"),
            row(outcomes="ssff", seed=1),
            row("no-memory", outcomes="ffff", seed=1),
        ]
    )[0]
    ours = cells(table, "Chameleon")
    assert ours["shell-game SR"] == interval(Rate.of(6, 8)) and ours["Seeds"] == "2"
    # with the same seed of training
    assert cells(table, "w/o memory")["Against Chameleon SR, points"] == "-50 (4 pairs)"
    # one policy played again, longer
    longer = comparisons([row(outcomes="ssss"), row(outcomes="ssssff")])[0]
    assert cells(longer, "Chameleon")["shell-game SR"] == interval(Rate.of(4, 6))


def test_every_setting_has_a_table() -> None:
    found = [
        row(),
        row(steps=8000),
        row(told=True),
        row(observation="state", image_size=None, trained_on=["shell-game"]),
    ]
    found.append(
        row(task="seasonings", observation="state", image_size=None, trained_on=["seasonings"])
    )
    tables = comparisons(found)
    assert len(tables) == 5 and tables[-1].title == "Table 1 of the paper"
    assert (
        "8,000 optimizer steps" in tables[1].title and "a policy for each task" in tables[2].title
    )
    assert cells(tables[2], "Chameleon")["seasonings SR"] == interval(Rate.of(2, 4))
    assert "told the answer" in tables[3].title and cells(tables[3], "Chameleon")[
        "shell-game MSR"
    ] == interval(Rate.of(3, 4))
    assert not any("DSR" in str(column) for column in tables[3].headings)
    assert cells(tables[-1], "Chameleon")["seasonings SR"] == "41.7"
    assert cells(comparisons([row("newcomer")])[0], "newcomer")["shell-game SR"] == interval(
        Rate.of(2, 4)
    )


def test_choices_are_counted_one_after_another() -> None:
    asked = {"answers": "012 011 221 000 120 111", "choices": "012 020 212 100 - 112"}
    found = choices.pairs([row(task="seasonings", outcomes="swwwfw", **asked)])
    assert found == [("012", "012"), ("011", "020"), ("221", "212"), ("000", "100"), ("111", "112")]
    rates = [choices.right_in_turn(found, part) for part in range(3)]
    assert [(round(rate.value * rate.count), rate.count) for rate in rates] == [
        (4, 5),
        (2, 4),
        (1, 2),
    ]
    order = choices.only_the_order(found)
    assert (order.value, order.count) == (0.25, 4)


def test_a_task_with_one_choice_has_no_table_of_choices() -> None:
    one, three = (
        {"answers": "0 1 2 0", "choices": "0 1 0 -"},
        {"answers": "012 111 000 120", "choices": "012 111 010 -"},
    )
    # the last is from an older bench
    rows = [row(**one), row(task="seasonings", **three), row("lstm", task="seasonings")]
    tables = comparisons(rows)
    assert [table.title.rpartition(": ")[2] for table in tables[1:]] == [
        "seasonings, choice by choice",
        "Table 1 of the paper",
    ]
    assert cells(tables[1], "Chameleon") == {
        "Method": "Chameleon",
        "Right choices first": interval(Rate.of(3, 3)),
        "Right choices second, after it": interval(Rate.of(2, 3)),
        "Right choices third, after both": interval(Rate.of(2, 2)),
        "Wrong episodes: only the order": interval(Rate.of(0, 1)),
    }
    assert set(cells(tables[1], "LSTM").values()) == {"LSTM", "not kept"}
    assert set(cells(tables[1], "ACT").values()) == {"ACT", "not run"}


def test_latex_prints_what_is_meant() -> None:
    assert escape_latex("95 % of a_b & c # d < e") == r"95 \% of a\_b \& c \# d $<$ e"
    text = latex(comparisons([row("odd_method", outcomes="s" * 90), row(outcomes="w" * 90)]))
    assert r"odd\_method" in text and r"95 \% intervals" in text
    assert (
        not re.findall(r"(?<!\\)_", text)
        and len(re.findall(r"^%|[^\\]%", text, re.MULTILINE)) == 1 + 2
    )
    assert text.count(r"\begin{") == text.count(r"\end{") == 4
    for table in text.split(r"\begin{tabular}")[1:]:
        width = len(re.match(r"\{(\w+)\}", table).group(1))  # type: ignore[union-attr]
        lines = re.findall(r"^(.*) \\\\$", table.split(r"\end{tabular}")[0], re.MULTILINE)
        for line in lines:
            spans = [int(number) for number in re.findall(r"\\multicolumn\{(\d+)\}", line)]
            assert len(re.findall(r"(?<!\\)&", line)) + 1 + sum(spans) - len(spans) == width, line


def test_markdown_and_files(tmp_path: Path) -> None:
    tables = comparisons([row(outcomes="s" * 90), row("<b>", outcomes="s" * 45 + "w" * 45)])
    lines = [line for line in markdown(tables).split("###")[1].splitlines() if line.startswith("|")]
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines}) == 1
    assert (
        "| **Chameleon** | 7.1 | 1 | not run | not run | 100 [96, 100] | 100 [96, 100] | not run |"
        in markdown(tables)
    )
    console = Console(file=(tmp_path / "console").open("w"), width=80)
    draw_tables(tmp_path / "table.json", [row(outcomes="s" * 90)], console)
    assert {path.name for path in tmp_path.iterdir()} == {
        "table.md",
        "table.tex",
        "table.html",
        "console",
    }


class Tables(HTMLParser):
    """The rows of all tables of a page: each a list of texts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.outside: list[str] = []
        self.inside = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
            self.inside = True

    def handle_endtag(self, tag: str) -> None:
        self.inside = self.inside and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.rows[-1][-1] += f" {data.strip()}" if self.rows[-1][-1] else data.strip()
        else:
            self.outside.append(data.strip())


def test_the_page_has_every_cell() -> None:
    three = {"answers": "012 111 000 120", "choices": "012 111 010 -"}
    tables = comparisons(
        [
            row(outcomes="s" * 90),
            row("<b>", outcomes="s" * 45 + "w" * 45),
            row(task="seasonings", **three),
        ]
    )
    html = page(tables)
    read = Tables(html)
    lines = [
        [str(cell) for cell in line.cells]
        for table in tables
        for section in table.sections.values()
        for line in section
    ]
    assert [each for each in read.rows if len(each) > 1 and each in lines] == lines
    headings = [each for each in read.rows if each[0] == "Method"]
    assert headings == [list(table.groups()) for table in tables]
    assert all(note in read.outside for table in tables for note in table.notes)
    assert "<b>" not in html and not re.findall("https?:", html)
    assert "prefers-color-scheme: dark" in html


def test_a_page_of_tables_needs_no_matplotlib() -> None:
    code = (
        "import chameleon_policy.report.comparison.rendering, sys;"
        "assert 'matplotlib' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_tables_of_another_suite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A suite without decisions has success rates alone, and no numbers of the paper."""
    monkeypatch.setitem(SUITES, "toy", "toy_suite:TOY")
    here = {"task": "lit", "trained_on": ["lit"], "observation": "state", "image_size": None}
    rows = [row(outcomes="sssf", **here), row("lstm", outcomes="sfff", **here)]
    draw_tables(tmp_path / "toy-table.json", rows, Console(width=200), "toy")
    (table,) = comparisons(rows, "toy")
    assert [str(heading) for heading in table.headings[3:5]] == ["lit SR", "Average SR"]
    ours = cells(table, "Chameleon")
    assert ours["lit SR"] == ours["Average SR"] == interval(Rate.of(3, 4))
    assert cells(table, "LSTM")["Against Chameleon SR, points"] == "-50 (4 pairs)"
    assert not any("MSR" in note or "Paper" in note for note in table.notes)
    assert "Toy: methods compared" in (tmp_path / "toy-table.html").read_text()
    assert "75" in capsys.readouterr().out
