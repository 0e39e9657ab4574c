"""What the README and docs/probes.md say of probes is what docs/results/probes.json says."""

from __future__ import annotations

import re

from chameleon_policy.probes.addressability import by_rule
from chameleon_policy.rates import Rate, interval, percent
from chameleon_policy.report import paper
from chameleon_policy.report.charts import svg
from chameleon_policy.report.probe_figures import charts
from chameleon_policy.report.probe_tables import leads, ready_at
from documents import README, ROOT, result, table_below

PAGE = (ROOT / "docs/probes.md").read_text()
NAMES = {
    "chameleon-4000steps-seed0": "Chameleon",
    "brief-4000steps-seed0": "w/o lasting working state",
    "chameleon-1500steps-seed0-state-clean-plate": "Chameleon, nano",
    "no-jepa-1500steps-seed0-state-clean-plate": "w/o Control-JEPA, nano",
}


FOUR_OF = (
    ("Chameleon", "seasonings"),
    ("w/o lasting working state", "seasonings"),
    ("w/o lasting working state", "clean-plate"),
)
"""Whose edited memories the README shows."""
FILES = ("probes", "probes-nano")


def findings() -> dict[tuple[str, str], dict]:
    return {
        (NAMES[each["run"]], each["task"]): each
        for file in FILES
        for each in result(f"{file}.json")["findings"]
    }


def cell(rate: dict) -> str:
    return interval(
        Rate.from_dict({name: rate[name] for name in ("value", "low", "high", "count")})
    )


def rows(finding: dict) -> dict[str, dict]:
    return {row["name"]: row for row in finding["addressability"]["rows"]}


def operated() -> dict[tuple[str, str], dict]:
    return {place: each for place, each in findings().items() if each["addressability"] is not None}


def test_code_on_the_page_runs() -> None:
    for code in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(code, "docs/probes.md", "exec"), {})


def test_separability() -> None:
    expected = []
    for (name, task), finding in findings().items():
        found = finding["separability"]
        there = paper.SEPARABILITY.get(task) if "nano" not in name else None
        expected.append(
            [
                name,
                task,
                f"{100 * found['chance']:.1f}",
                *(cell(found[each]) for each in ("current", "memory", "shuffled")),
                "-" if there is None else f"{there[0]}, {there[1]}",
            ]
        )
    assert table_below("separability", PAGE) == expected


def test_addressability() -> None:
    columns = operated()
    names = [row["name"] for row in next(iter(columns.values()))["addressability"]["rows"]]
    expected = []
    for name in names:
        there = paper.ADDRESSABILITY.get(name)
        found = [rows(each)[name] for each in columns.values()]
        cells = [
            f"{cell(row['follows'])}" + (f" ({row['nothing']} none)" if row["nothing"] else "")
            for row in found
        ]
        expected.append([name, *cells, "-" if there is None else f"{there:.0f}"])
    assert table_below("addressability", PAGE) == expected
    header = next(line for line in PAGE.splitlines() if line.startswith("| memory |"))
    assert [each.strip() for each in header.strip("|").split("|")][1:-1] == [
        ", ".join(place) for place in columns
    ]


def test_the_controls_hold() -> None:
    for place, finding in findings().items():
        shuffled, chance = finding["separability"]["shuffled"], finding["separability"]["chance"]
        assert shuffled["low"] <= chance <= shuffled["high"], place
        seen = finding["separability"]["current"]
        assert seen["low"] <= chance <= seen["high"], place
    changed = {}
    for place, finding in operated().items():
        own, equal = rows(finding)["Own memory"], rows(finding)["Equal answer, another scene"]
        assert own["same_actions"] == own["follows"]["count"], place
        full = rows(finding)["Full"]
        unedited = dict(
            zip(
                zip(full["episodes"].split(), full["decisions"], strict=True),
                full["choices"],
                strict=True,
            )
        )
        places = zip(equal["episodes"].split(), equal["decisions"], strict=True)
        pairs = [
            (unedited[each], chosen) for each, chosen in zip(places, equal["choices"], strict=True)
        ]
        changed[place] = (
            sum(chosen not in ("-", usual) for usual, chosen in pairs),
            len(pairs),
            equal["nothing"],
        )
    plates = [figures for (_, task), figures in changed.items() if task == "clean-plate"]
    assert len(plates) == 4 and not any(figures[0] for figures in plates)
    page = " ".join(PAGE.split())
    episodes, nothing = (sum(figures[place] for figures in plates) for place in (1, 2))
    assert (
        f"no other plate in any of {episodes} (4 policies; in {nothing} nothing is taken)" in page
    )
    seasonings = [figures for (_, task), figures in changed.items() if task == "seasonings"]
    assert (
        "there {} of {} and {} of {} choices change".format(
            *(n for each in seasonings for n in each[:2])
        )
        in page
    )


def test_prospectiveness() -> None:
    expected = []
    for (name, task), finding in findings().items():
        found = finding["prospectiveness"]
        now = next(point for point in found["working"] if point["step"] == 0)
        steps = [
            "never" if step is None else f"{step:+d}" if step else "0"
            for step in ready_at(finding).values()
        ]
        expected.append([name, task, *steps, cell(now)])
    assert table_below("prospectiveness", PAGE) == expected


def test_the_readme_beside_the_paper() -> None:
    found = findings()
    expected = []
    for task in ("shell-game", "seasonings"):
        read = found["Chameleon", task]["separability"]
        there = paper.SEPARABILITY[task]
        expected.append(
            [
                f"{task}: z from what is seen, from h",
                f"{cell(read['current'])}, {cell(read['memory'])}",
                f"{there[0]}, {there[1]}",
            ]
        )
    there = ", ".join(f"{value:.0f}" for value in paper.ADDRESSABILITY.values())
    for name, task in FOUR_OF:
        edits = [rows(found[name, task])[each] for each in by_rule("attended")]
        four = ", ".join(str(percent(row["follows"]["value"])) for row in edits)
        expected.append([f"{task}, {name}: Full, Swap, Mask+, Mask-", four, there])
    assert table_below("probes") == expected


def test_figures_are_those_of_the_findings() -> None:
    for file in FILES:
        for name, figure in charts(result(f"{file}.json")["findings"]).items():
            assert (ROOT / f"docs/results/{file}-{name}.svg").read_text() == svg(figure), (
                f"chameleon probe --found-only: {name}"
            )


def follows(name: str, task: str, edit: str) -> int:
    return percent(rows(findings()[name, task])[edit]["follows"]["value"])


def said() -> dict[str, str]:
    """What the words say -> the figures in them."""
    found = findings()
    chameleon, brief = "Chameleon", "w/o lasting working state"
    swap, masked, kept = by_rule("attended")[1:]
    ready = {name: ready_at(found[name, "seasonings"])["working"] for name in (chameleon, brief)}
    nano = [found[f"{name}, nano", "clean-plate"] for name in (chameleon, "w/o Control-JEPA")]
    early, late = (ready_at(each)["working"] for each in nano)
    earlier = leads(nano)[nano[1]["run"], "clean-plate"]
    assert earlier is not None and early < 0 < late and earlier == late - early
    last, both = (
        " / ".join(str(follows(brief, "clean-plate", edit)) for edit in edits)
        for edits in (
            by_rule("attended"),
            ("Full", "Swap, all layers", "Mask+, all layers", "Mask-, all layers"),
        )
    )
    return {
        "PLATES": str(follows(chameleon, "clean-plate", "Swap, working state")),
        "SEASONINGS": str(follows(chameleon, "seasonings", "Swap, working state")),
        "READY": str(-ready_at(found[chameleon, "clean-plate"])["working"]),
        "SWAP": str(follows(brief, "seasonings", swap)),
        "MASKED": str(follows(brief, "seasonings", masked)),
        "KEPT": str(follows(brief, "seasonings", kept)),
        "RANDOM": str(follows(brief, "seasonings", "Swap, random")),
        "PLATEFOUR": last,
        "PLATEALL": both,
        "DECODED": str(follows(brief, "seasonings", "Swap")),
        "WHOLE": str(follows(brief, "seasonings", "Swap, everything")),
        "LEADFULL": str(-ready[chameleon]),
        "LEADBRIEF": str(-ready[brief]),
        "WITHIT": str(-early),
        "NOJEPA": str(late),
        "EARLIER": str(earlier),
    }


def test_what_the_words_say() -> None:
    figures = said()
    page, readme = (" ".join(text.split()) for text in (PAGE, README))
    for words in (
        "takes what the twin was shown: PLATES % of the plates, SEASONINGS % of the seasonings",
        "can be read from h READY steps ahead of the decision",
        "turn SWAP % of the next seasonings; emptied, they leave MASKED % right",
        "with all others emptied nothing is lost (KEPT %)",
        "As many random traces turn RANDOM %",
        "the last layer alone gives PLATEFOUR, and the traces from which the plate is read best, in both layers, PLATEALL",
        "exchanging those turns only DECODED %",
        "with its whole memory WHOLE % follow",
        "read from h LEADFULL steps before it is due, from the h that does not last LEADBRIEF steps",
        "from h WITHIT steps before the decision",
        "reached NOJEPA steps after",
        "EARLIER steps earlier (the paper: 17 and 10)",
    ):
        assert re.sub("[A-Z]{4,}", lambda word: figures.get(word[0], word[0]), words) in page, words
    assert f"swapping the working state changes {figures['PLATES']} % of the plates" in readme
    assert f"readable from h {figures['EARLIER']} steps earlier" in readme
    full = rows(findings()["w/o lasting working state", "seasonings"])["Full"]["follows"]["value"]
    assert percent(full) == int(figures["KEPT"])  # nothing is lost
    for task in ("clean-plate", "seasonings"):  # all traces exchanged: its own answer nearly always
        assert rows(findings()["Chameleon", task])["Swap, every trace"]["original"]["value"] > 0.85
    for name in ("Chameleon, nano", "w/o Control-JEPA, nano"):
        assert findings()[name, "clean-plate"]["scores"]["sr"]["value"] == 1.0
    read = findings()["Chameleon", "seasonings"]["separability"]
    whole, places = (percent(read[name]["value"]) for name in ("memory", "place_by_place"))
    assert (
        f"in {whole} % as one of 27 (place by place, by a probe for each, {places} % at the first decision)"
        in page
    )
    shell = findings()["Chameleon", "shell-game"]
    assert abs(shell["scores"]["dsr"]["value"] - shell["separability"]["memory"]["value"]) < 0.05
    assert ready_at(shell)["working"] > 0 and shell["scores"]["dsr"]["value"] < 0.8
    assert all(
        ready_at(findings()[name, "seasonings"])["traces"] == -40
        for name in ("Chameleon", "w/o lasting working state")
    )
