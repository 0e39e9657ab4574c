"""What the README, docs/baselines.md and LOG.md say of the comparison is what its result files
say.
"""

from __future__ import annotations

import json
import re

from rich.console import Console

from benchmarks import parameters
from benchmarks.which_memory import EMPTIED
from chameleon_policy.baselines import METHODS
from chameleon_policy.rates import Rate, interval, percent
from chameleon_policy.report.comparison.choices import pairs
from chameleon_policy.report.comparison.methods import comparisons
from chameleon_policy.report.comparison.outcomes import episodes, paired
from chameleon_policy.report.comparison.rendering import draw_tables
from chameleon_policy.report.paper import NAMES, SECTIONS, TABLE_1
from documents import README, ROOT, result, table_below


def bench_rows() -> list[dict]:
    return json.loads((ROOT / "docs/results/camo-table.json").read_text())["rows"]


def test_the_tables_of_the_bench_are_those_of_its_rows(tmp_path) -> None:
    draw_tables(tmp_path / "camo-table.json", bench_rows(), Console(quiet=True))
    for ending in ("md", "tex", "html"):
        drawn = (tmp_path / f"camo-table.{ending}").read_text()
        assert drawn == (ROOT / f"docs/results/camo-table.{ending}").read_text(), (
            f"chameleon bench camo --table-only: {ending}"
        )


def test_the_comparison_in_the_readme() -> None:
    table = comparisons(bench_rows())[0]
    expected = []
    for line in (line for section in table.sections.values() for line in section):
        cell = dict(zip(map(str, table.headings), line.cells, strict=True))
        paper = list(dict.fromkeys(cell[f"Paper {name}"].value for name in ("DSR", "MSR", "SR")))
        against = list(
            dict.fromkeys(cell[f"Against Chameleon {name}"].value for name in ("SR, points", "p"))
        )
        expected.append(
            [
                f"**{cell['Method']}**" if line.emphasised else str(cell["Method"]),
                *(str(cell[f"Average {name}"]) for name in ("DSR", "MSR", "SR")),
                "-" if paper == ["not in it"] else ", ".join(paper),
                ", ".join(against),
            ]
        )
    assert table_below("comparison") == expected
    rows = [row for row in bench_rows() if not row["told"] and row["preset"] == "small"]
    text = " ".join(README.split())
    (played,), (steps,) = {row["episodes"] for row in rows}, {row["steps"] for row in rows}
    assert f"for the same {steps:,} optimizer steps" in text
    assert f"plays the same {played} held-out episodes" in text
    chance = {row["task"]: row["chance"] for row in rows}
    assert f"a guess has a mean DSR of {percent(sum(chance.values()) / len(chance))} %" in text
    for row in rows:
        if row["method"] in (
            "act",
            "flow-matching",
            "no-memory",
            "diffusion-transformer",
            "diffusion-unet",
        ):
            assert row["dsr"]["low"] <= row["chance"] <= row["dsr"]["high"], (
                row["method"],
                row["task"],
            )
    told = {row["method"]: row for row in bench_rows() if row["told"]}
    assert set(told) == {"diffusion-transformer", "diffusion-unet", "act", "flow-matching"}
    scores = [percent(row[name]["value"]) for row in told.values() for name in ("msr", "sr")]
    assert (
        f"Told the answer, the four baselines do clean-plate in {min(scores)} to {max(scores)} %"
        in text
    )
    reference = episodes(row for row in rows if row["method"] == "chameleon")
    kept = [method for method in SECTIONS["Mechanism ablations"] if method != "no-memory"]
    against = [
        paired(reference, episodes(row for row in rows if row["method"] == method))
        for method in kept
    ]
    assert all(both is not None and both.episodes == 3 * played for both in against)
    largest, ps = (
        max(percent(-both.difference) for both in against if both.difference < 0),
        [both.p for both in against],
    )
    average = {str(line.cells[0]): line for section in table.sections.values() for line in section}
    best = paired(reference, episodes(row for row in rows if row["method"] == "lstm"))
    assert (
        f"{percent(best.difference)} points of SR above Chameleon (p < 0.001" in text
        and best.p < 0.001
    )
    column = list(map(str, table.headings)).index("Average SR")
    assert max(average, key=lambda name: int(str(average[name].cells[column]).split()[0])) == "LSTM"
    traces = paired(reference, episodes(row for row in rows if row["method"] == "brief"))
    assert (
        "traces alone remember, does as well as Chameleon" in text
        and percent(traces.difference) == 0
    )
    assert f"Taking one mechanism away costs {largest} points of SR or less" in text
    assert f"(p {min(ps):.2f} to {max(ps):.2f})" in text


def chosen(method: str) -> list[tuple[str, str]]:
    """What a method of the table was asked in seasonings, and what it chose."""
    named = {"method": method, "task": "seasonings", "preset": "small", "told": False}
    return pairs(
        row for row in bench_rows() if all(row[name] == value for name, value in named.items())
    )


def seasonings(method: str) -> dict[tuple[str, int, int], bool]:
    """Successes of a method of the table in seasonings alone."""
    return episodes(
        row
        for row in bench_rows()
        if (row["method"], row["task"], row["preset"]) == (method, "seasonings", "small")
    )


def test_what_came_out_and_why() -> None:
    page = (ROOT / "docs/baselines.md").read_text()
    whole = {
        line.cells[0].value: line
        for section in comparisons(bench_rows())[1].sections.values()
        for line in section
    }
    shown = table_below("choices", page)
    assert len(shown) == 8 and shown == [
        [str(cell) for cell in whole[line[0]].cells] for line in shown
    ]
    expected = []
    for size in ("small", "nano"):
        found = result(f"which-memory-{size}.json")["rows"]
        for method, task in dict.fromkeys((row["method"], row["task"]) for row in found):
            row = {
                row["emptied"]: row
                for row in found
                if (row["method"], row["task"]) == (method, task)
            }
            assert list(row) == list(EMPTIED)
            assert len({choice for _, choice in pairs([row["both"]])}) <= 1  # whatever was shown
            scores = [
                f"{interval(Rate.from_dict(row[each]['dsr']))} / {percent(row[each]['msr']['value'])}"
                for each in EMPTIED
            ]
            expected.append([f"{NAMES[method]}, {size}", task, *scores])
    assert table_below("which-memory", page) == expected
    left = [
        pairs([row])
        for row in result("which-memory-small.json")["rows"]
        if row["emptied"] == "slow"
    ]
    right = [sum(z == choice for z, choice in found) for found in left]
    said = f"({right[0]} of {len(left[0])} plates and {right[1]} of {len(left[1])} cups; often it does not act at all)"
    assert said in " ".join(page.split()) and right == [len(found) for found in left]
    small = {row["method"]: [] for row in bench_rows()}
    for row in bench_rows():
        if row["preset"] == "small" and not row["told"]:
            small[row["method"]].append(row["dsr"]["value"])
    kept = [method for method in SECTIONS["Mechanism ablations"] if method != "no-memory"]
    ours = [percent(sum(small[method]) / 3) for method in kept]
    theirs = [percent(TABLE_1[method].dsr / 100) for method in kept]
    assert (
        f"their mean DSR is {min(ours)} to {max(ours)} % here, {min(theirs)} to {max(theirs)} % there"
        in " ".join(page.split())
    )
    alone = {method: paired(seasonings("chameleon"), seasonings(method)) for method in kept}
    for method, words in (
        ("no-jepa", "without Control-JEPA by {} points"),
        ("similarity", "with similarity retrieval by {}"),
    ):
        said = f"{words.format(percent(-alone[method].difference))} (p {alone[method].p:.3f})"
        assert said in " ".join(page.split())
    whole_table = [row for row in bench_rows() if row["preset"] == "small" and not row["told"]]
    best = episodes(row for row in whole_table if row["method"] == "no-control-index")
    others = [
        paired(best, episodes(row for row in whole_table if row["method"] == method))
        for method in kept
    ]
    assert "beats the other three (p 0.005 or less)" in " ".join(page.split())
    assert all(
        round(both.p, 3) <= 0.005 and both.difference < 0
        for both in others
        if both.lost + both.gained
    )
    against = {
        (method, task): paired(
            *(
                episodes(row for row in whole_table if (row["method"], row["task"]) == (name, task))
                for name in ("chameleon", method)
            )
        )
        for method, task in (
            ("brief", "shell-game"),
            ("brief", "seasonings"),
            ("lstm", "seasonings"),
        )
    }
    lost, gained = (
        [getattr(both, name) for both in against.values()] for name in ("lost", "gained")
    )
    text = " ".join(page.split())
    assert (
        f"({lost[0]} cups lost and {gained[0]} gained, {lost[1]} orders lost and {gained[1]} gained"
        in text
    )
    assert f"({lost[2]} orders lost and {gained[2]} gained against Chameleon, p < 0.001)" in text
    assert against["lstm", "seasonings"].p < 0.001 < 0.05 < against["brief", "seasonings"].p < 0.5
    assert against["brief", "shell-game"].p > 0.05
    rows = {row["method"]: row for row in result("brief-working-state.json")["rows"]}
    methods = ("chameleon", "no-control-index", "vanilla-mamba", "similarity")
    usual = {row["method"]: row for row in bench_rows() if row["preset"] == "nano"}
    assert table_below("brief", page) == [
        [
            NAMES[method],
            *(
                interval(Rate.from_dict(row["dsr"]))
                for row in (usual[method], rows[f"brief-{method}"])
            ),
        ]
        for method in methods
    ]
    falls, stays = (
        percent(rows[f"brief-{method}"]["dsr"]["value"]) for method in ("similarity", "chameleon")
    )
    text = " ".join(README.split())
    assert (
        f"falls to a guess ({falls} % of plates, nano) and Chameleon does not ({stays} %)" in text
    )
    # as LOG.md tells
    for method, wrong, exchanged in (("chameleon", 17, 10), ("similarity", 28, 3)):
        found = [(z, choice) for z, choice in chosen(method) if z != choice]
        assert (len(found), sum(choice == z[0] + z[2] + z[1] for z, choice in found)) == (
            wrong,
            exchanged,
        )
        if method == "similarity":
            assert sum(z[0] == choice[0] and choice[1] == choice[2] for z, choice in found) == 9
    assert "Of Chameleon's 17 wrong orders, ten exchange" in (ROOT / "LOG.md").read_text()


def test_the_methods_page() -> None:
    counts = json.loads(parameters.METHODS_RESULT.read_text())["result"]
    assert counts == parameters.methods()
    expected = []
    for method in METHODS:
        cells = [f"`{method}`"]
        for size in ("small", "paper", "nano"):
            count, ours = counts[size][method], counts[size]["chameleon"]
            cells.append(
                f"{count:,}"
                + ("" if method == "chameleon" else f" ({100 * (count / ours - 1):+.1f} %)")
            )
        expected.append(cells)
    page = (ROOT / "docs/baselines.md").read_text()
    assert table_below("methods", page) == expected
    largest = max(
        abs(count / counts["small"]["chameleon"] - 1) for count in counts["small"].values()
    )
    assert largest <= 0.05 and "about as many parameters (within 5 %)" in README
    assert set(re.findall(r"^\| `([\w-]+)` \|", page.split("## Sizes")[0], re.MULTILINE)) == set(
        METHODS
    )
