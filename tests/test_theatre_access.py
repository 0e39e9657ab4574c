"""The report's page for everybody: links, themes, narrow screens, screen readers, odd names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from theatre_browser import GUTTER, Open, camera, pixel, scrub, settle, shown_number, state, write
from theatre_episodes import make_episode, shares


def test_the_address_restores_the_moment(report: Path, show: Open) -> None:
    page = show(report)
    names = ("episode", "step", "layer", "head", "overlay", "counterfactual")
    scrub(page, 33)
    page.locator("#layer").select_option(label="2")
    page.locator("#head").select_option(label="3")
    page.get_by_label("heat map").uncheck()
    page.get_by_role("radio", name="erase the evidence").nth(1).check()
    page.wait_for_function("location.hash.includes('step=33') && location.hash.includes('edit=6')")
    page.reload()
    assert state(page, *names) == [0, 33, 1, 2, False, 5]
    assert shown_number(page, camera(0)) == 33
    page.evaluate("location.hash = 'episode=2&step=12'")
    page.wait_for_function("theatre.episode === 1")
    assert state(page, *names[:4]) == [1, 12, 0, -1]
    page.evaluate("location.hash = 'episode=99&step=-5&layer=x&head=77'")
    page.wait_for_function("theatre.episode === 2")
    assert state(page, "step", "layer") == [0, 0]


# Contrast as WCAG defines it, of every piece of text against what lies behind it.
WEAK_TEXT = """() => {
  const parse = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = (colour) => colour.slice(0, 3).map((value) => value / 255)
    .map((value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4))
    .reduce((sum, value, channel) => sum + value * [0.2126, 0.7152, 0.0722][channel], 0);
  const behind = (element) => {
    for (let each = element; each; each = each.parentElement) {
      const colour = parse(getComputedStyle(each).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  return [...document.body.querySelectorAll("*")].filter((element) =>
    element.checkVisibility() && !element.matches("script, option") &&
    [...element.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim())
    ).filter((element) => {
      const style = getComputedStyle(element);
      const colour = element instanceof SVGElement ? style.fill : style.color;
      const lights = [light(parse(colour)), light(behind(element))];
      return (Math.max(...lights) + 0.05) / (Math.min(...lights) + 0.05) < 4.5;
    }).map((element) => element.outerHTML.slice(0, 80));
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_readable_in_light_and_dark(report: Path, show: Open, scheme: str) -> None:
    page = show(report, "edit=3", color_scheme=scheme)
    lightness = np.mean(
        page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
    )
    assert (lightness > 128) == (scheme == "light")
    assert page.evaluate(WEAK_TEXT) == []


def test_the_timeline_follows_the_theme(report: Path, show: Open) -> None:
    page = show(report, color_scheme="light")
    playhead = GUTTER[0] / 1240, 0.7
    assert max(pixel(page, "#timeline", *playhead)[:3]) < 100
    (before,) = state(page, "drawn.timeline")
    page.emulate_media(color_scheme="dark")
    page.wait_for_function(f"theatre.drawn.timeline > {before}")
    settle(page)
    assert min(pixel(page, "#timeline", *playhead)[:3]) > 150


@pytest.mark.parametrize("width", [700, 1280])
def test_nothing_is_wider_than_the_screen(report: Path, show: Open, width: int) -> None:
    page = show(report, viewport={"width": width, "height": 720})
    for number in range(3):
        assert page.evaluate("document.documentElement.scrollWidth") <= width, number
        page.keyboard.press("]")
        settle(page)
    if width == 1280:
        assert (
            page.locator(".stage").evaluate("(stage) => stage.getBoundingClientRect().bottom")
            <= 720
        )
        assert page.locator(camera(0)).evaluate("(canvas) => canvas.clientWidth") == 300


def test_everything_has_a_name(report: Path, show: Open) -> None:
    page = show(report)
    tree = page.context.new_cdp_session(page).send("Accessibility.getFullAXTree")["nodes"]
    roles = {
        "button",
        "combobox",
        "slider",
        "checkbox",
        "radio",
        "image",
        "img",
        "group",
        "graphics-document",
    }
    found = [
        (node["role"]["value"], node.get("name", {}).get("value"))
        for node in tree
        if not node["ignored"]
    ]
    named = [(role, name) for role, name in found if role in roles]
    assert all(name for _, name in named), named
    kinds = [role for role, _ in named]
    assert [kinds.count(role) for role in ("slider", "radio", "checkbox", "combobox")] == [
        2,
        6,
        1,
        4,
    ]
    assert ("slider", "Step of the episode") in named
    # two cameras, timeline, plans, film
    assert sum(role in ("image", "img") for role in kinds) >= 5
    for name in (
        "Play",
        "One step back",
        "One step forward",
        "Previous episode",
        "Next episode",
        "Play what follows",
    ):
        assert ("button", name) in named


def test_markup_in_names_is_only_text(tmp_path: Path, show: Open) -> None:
    odd = """</script><script>window.broken = 1</script><b>"'&amp;"""
    base = make_episode(20, decisions=(10,))
    belief = replace(
        base.beliefs[0],
        question=odd,
        choices=(odd, "b", "c"),
        shares=shares(np.random.default_rng(0), 20, 3),
    )
    edits = tuple(
        replace(edit, name=odd, explanation=odd, asks_for=odd) for edit in base.counterfactuals
    )
    episode = replace(
        base,
        policy=odd,
        answer=odd,
        outcome=odd,
        beliefs=(belief,),
        candidates={odd: (0.5, 0.1)},
        counterfactuals=edits,
        layout=replace(base.layout, others=(odd, "body")),
    )
    page = show(write(tmp_path, [episode], name=odd))
    assert page.evaluate("window.broken") is None
    for where in (
        "#outcome",
        "#belief-bars .name >> nth=0",
        "#edit-explanation",
        "#edit-choices .edit >> nth=0",
        "#recall-bars .name >> nth=2",
        "#scores h3",
        ".candidate-name",
    ):
        assert page.locator(where).text_content() == odd, where
    assert odd in (page.locator("#episode option").text_content() or "")
    # the verdict's own emphasis, no other
    assert page.locator("#theatre b").filter(has_text="amp").count() <= 1
