"""Names, instructions and reasons from data and checkpoints are text: no page runs them."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser

from bench_rows import row
from chameleon_policy.camo.scoring import Summary
from chameleon_policy.console import Terminal
from chameleon_policy.rates import Rate
from chameleon_policy.report.charts import learning_curves
from chameleon_policy.report.comparison.cells import Comparison
from chameleon_policy.report.comparison.methods import comparisons
from chameleon_policy.report.comparison.rendering import markdown, page, terminal_table
from chameleon_policy.report.demo_page import Contender, ShippedResult, demo_page
from chameleon_policy.report.pages import Clip
from chameleon_policy.report.theatre.page import report_page
from theatre_episodes import make_episode, make_run, shares

ATTACKS = (
    "<img src=x onerror='window.ran=1'>",
    "</script><script>window.ran=2</script>",
    "<!--<script>window.ran=3",
    '" autofocus onfocus="window.ran=4" x=\'',
    "'></style></title></textarea></option></select><svg onload=window.ran=5>",
    "{{ 6 * 7 }}{% raw %}",
    "\u2028window.ran=7\u2029",
    "[/foo][red]",
    "\x1b[2J\x1b]0;title\x07",
    "$\\frac{$",
)
ODD = " ".join(ATTACKS)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return each kind of page with the odd text wherever a text is free."""
    path = tmp_path_factory.mktemp("clips") / "clip.mp4"
    path.write_bytes(b"no video")
    clip = Clip(path, ODD)
    summary = Summary(
        Rate.of(3, 6), Rate.of(2, 3), Rate.of(2, 6), 1 / 3, {ODD: 4, f"{ODD} again": 2}
    )
    base = make_episode(20, decisions=(10,))
    belief = replace(
        base.beliefs[0],
        question=ODD,
        choices=(ODD, "b", "c"),
        shares=shares(np.random.default_rng(0), 20, 3),
    )
    edits = tuple(
        replace(edit, name=ODD, explanation=ODD, asks_for=ODD, chosen=ODD)
        for edit in base.counterfactuals
    )
    episode = replace(
        base,
        policy=ODD,
        task=ODD,
        answer=ODD,
        outcome=ODD,
        beliefs=(belief,),
        candidates={ODD: (0.5, 0.1)},
        counterfactuals=edits,
        layout=replace(base.layout, others=(ODD, "body")),
    )
    chart = learning_curves({ODD: [{"step": step, "action": 1 / step} for step in (1, 2, 3)]})[0]
    run = make_run(
        name=ODD, method=ODD, preset=ODD, scores={ODD: summary}, clips=[clip], figures={ODD: chart}
    )
    metrics = [{"step": step, "seconds": 60.0, "action": 1 / step} for step in (1, 2, 3)]
    contenders = [Contender(f"{name} {ODD}", summary, metrics, [clip]) for name in "ab"]
    shipped = [ShippedResult(ODD, ODD, 1, 2, clip)]
    return {
        "report": report_page([run], [episode], [ODD]),
        "demo": demo_page(ODD, ODD, contenders, [ODD], shipped),
        "comparison": page(odd_comparisons()),
    }


def odd_comparisons() -> list[Comparison]:
    """Return tables whose cells, headings and notes are odd."""
    return [odd_comparison(table) for table in comparisons([row(), row(method="lstm")])]


def odd_comparison(table: Comparison) -> Comparison:
    lines = [
        replace(line, cells=tuple(replace(cell, value=ODD, detail=ODD) for cell in line.cells))
        for section in table.sections.values()
        for line in section
    ]
    headings = tuple(replace(each, group=ODD, name=ODD) for each in table.headings)
    return replace(table, title=ODD, headings=headings, sections={ODD: lines}, notes=(ODD,))


class Elements(HTMLParser):
    """The elements of a page with their attributes, as a browser would find them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: Sequence[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attributes)))


@pytest.mark.parametrize("kind", ["report", "demo", "comparison"])
def test_odd_text_adds_no_element_and_no_handler(pages: dict[str, str], kind: str) -> None:
    found = Elements(pages[kind]).found
    assert not [tag for tag, _ in found if tag in ("img", "iframe", "object", "base", "link")]
    assert not [name for _, given in found for name in given if name.startswith("on")]
    links = [given.get(name) for _, given in found for name in ("src", "href") if name in given]
    assert all((link or "").startswith(("data:", "#")) for link in links)
    scripts = sum(tag == "script" for tag, _ in found)
    assert scripts == {"report": 2, "demo": 0, "comparison": 0}[kind]
    assert "{{ 6 * 7 }}" in pages[kind]


def test_scripts_carry_the_text_of_an_episode_unchanged(pages: dict[str, str]) -> None:
    text = re.search(r'<script type="application/json"[^>]*>(.*?)</script>', pages["report"], re.S)
    assert text is not None and "<" not in text[1]
    assert json.loads(text[1])["answer"] == ODD


@pytest.mark.parametrize("kind", ["report", "demo", "comparison"])
def test_a_browser_runs_nothing_of_it(
    pages: dict[str, str], browser: Browser, tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "page.html"
    path.write_text(pages[kind], encoding="utf-8")
    tab = browser.new_page()
    errors: list[str] = []
    requests: list[str] = []
    tab.on("pageerror", lambda error: errors.append(str(error)))
    tab.on("request", lambda request: requests.append(request.url))
    tab.goto(path.as_uri())
    tab.wait_for_load_state("networkidle")
    assert tab.evaluate("window.ran") is None
    assert tab.locator("img, iframe").count() == 0
    assert tab.evaluate("document.title.includes('onerror')") is (kind == "report")
    assert not errors
    assert {url for url in requests if not url.startswith("data:")} == {path.as_uri()}
    tab.close()


def test_terminal_tables_show_it_as_it_is() -> None:
    for console in (Terminal(), Terminal(stderr=True)):
        console.file, console.width = io.StringIO(), 4000
        for table in odd_comparisons():
            console.print(terminal_table(table, 10_000, ()))
        shown = console.file.getvalue()
        assert "[/foo][red]" in shown and "\\x1b[2J" in shown
        assert "\x1b" not in shown and "\x07" not in shown


def test_markdown_tables_have_no_elements() -> None:
    assert "<" not in markdown(odd_comparisons())
