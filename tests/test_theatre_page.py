"""The report's page in a real browser: every way through it shows the data that was put in."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from chameleon_policy.probes.theatre import token_layout
from examples import IMAGE_FEATURES, STATE_FEATURES
from theatre_browser import (
    EPISODES,
    GUTTER,
    SLOTS,
    STEPS,
    Open,
    bars,
    camera,
    pixel,
    scrub,
    settle,
    shown_number,
    state,
    write,
)
from theatre_episodes import LAYOUT, make_episode, number_of


def test_the_scrubber_moves_pictures_and_bars(report: Path, show: Open) -> None:
    page = show(report, "heat=off&layer=2&head=3")
    episode = EPISODES[0]
    for step in (0, 7, 41, 59, 20):
        scrub(page, step)
        assert [shown_number(page, camera(0)), shown_number(page, camera(1))] == [step, step + 1]
        assert state(page, "shownFrame") == [{"third": step, "wrist": step}]
        believed = np.concatenate([belief.shares[step] for belief in episode.beliefs])
        assert bars(page, "#belief-bars") == pytest.approx(believed, abs=0.01)
        numbers = page.locator("#belief-bars .number").all_text_contents()
        assert [int(text.removesuffix(" %")) for text in numbers] == pytest.approx(
            100 * believed, abs=0.6
        )
        attended = episode.attention[step, 1, 2]
        totals = [attended[:16].sum(), attended[16:32].sum(), *attended[32:]]
        assert bars(page, "#recall-bars") == pytest.approx(totals, abs=0.01)
        phase = episode.phases[step]
        spoken = page.locator("#scrubber").get_attribute("aria-valuetext")
        assert (
            spoken
            == page.locator("#clock").inner_text()
            == f"step {step} of 59, {phase}, {step / 7.5:.1f} s"
        )
        assert page.locator(camera(0)).get_attribute("aria-label").endswith(spoken)
    right = page.locator("#belief-bars .is-right .name").all_text_contents()
    assert right == ["middle", "right"]
    marks = page.locator("#belief-bars .chance").evaluate_all(
        "(marks) => marks.map((mark) => mark.style.left)"
    )
    assert [float(mark.removesuffix("%")) for mark in marks] == pytest.approx(
        [100 / 3] * 6, abs=0.01
    )


def test_the_timeline_is_clicked_and_dragged(report: Path, show: Open) -> None:
    page = show(report, "heat=off")
    box = page.locator("#timeline").bounding_box()
    assert box is not None

    def across(step: float) -> float:
        return box["x"] + GUTTER[0] + step / (STEPS - 1) * (box["width"] - sum(GUTTER))

    middle = box["y"] + box["height"] / 2
    page.mouse.click(across(20), middle)
    assert state(page, "step") == [20]
    assert shown_number(page, camera(0)) == 20
    page.mouse.move(across(50), middle)
    assert state(page, "step") == [20]  # no button is held
    page.mouse.down()
    page.mouse.move(across(33), middle + 300, steps=5)
    assert state(page, "step") == [33]
    page.mouse.move(across(80), middle)
    page.mouse.up()
    assert state(page, "step") == [59]
    strip = 23 / box["height"]
    for step, colour in {8: (214, 120, 32), 18: (110, 116, 124), 50: (36, 110, 168)}.items():
        assert pixel(page, "#timeline", (across(step) - box["x"]) / box["width"], strip)[
            :3
        ] == list(colour)


def test_every_key(report: Path, show: Open) -> None:
    page = show(report)
    for key, name, expected in [
        ("ArrowRight", "step", 1),
        ("Shift+ArrowRight", "step", 11),
        ("ArrowLeft", "step", 10),
        ("Shift+ArrowLeft", "step", 0),
        ("End", "step", 59),
        ("ArrowRight", "step", 59),
        ("Home", "step", 0),
        ("d", "step", 20),
        ("D", "step", 40),
        ("d", "step", 20),
        ("l", "layer", 1),
        ("L", "layer", 0),
        ("h", "head", 0),
        ("H", "head", 1),
        ("h", "head", 2),
        ("h", "head", -1),
        ("]", "episode", 1),
        ("]", "episode", 2),
        ("]", "episode", 0),
        ("[", "episode", 2),
        ("[", "episode", 1),
        (" ", "playing", True),
        (" ", "playing", False),
    ]:
        page.keyboard.press(key)
        assert state(page, name) == [expected], key
    listed = page.locator(".keys kbd").all_text_contents()
    assert listed == ["space", "←", "→", "shift", "home", "end", "D", "L", "H", "[", "]"]


def test_a_focused_control_keeps_its_own_keys(report: Path, show: Open) -> None:
    page = show(report)
    page.locator("#scrubber").focus()
    page.keyboard.press("Shift+ArrowRight")
    assert state(page, "step") == [10]  # once, not once by each
    page.locator("#layer").focus()
    page.keyboard.press("End")
    assert state(page, "step", "layer") == [10, 1]
    page.locator("#forward").focus()
    page.keyboard.press(" ")
    assert state(page, "step", "playing") == [11, False]
    page.get_by_role("radio", name="as it was").first.check()
    page.get_by_role("button", name="Pause what follows").click()
    page.locator("#edit-scrubber").fill("0")
    page.locator("#edit-scrubber").focus()
    page.keyboard.press("ArrowRight")
    assert state(page, "step", "shownAfter") == [11, 21]


def test_it_plays_and_stops_at_the_end(report: Path, show: Open) -> None:
    page = show(report, "heat=off&step=50")
    page.locator("#speed").select_option("8")
    page.get_by_role("button", name="Play", exact=True).click()
    page.wait_for_function("theatre.step === 59 && !theatre.playing")
    settle(page)
    assert shown_number(page, camera(0)) == 59
    page.locator("#speed").select_option("0.25")
    page.get_by_role("button", name="Play", exact=True).click()  # again from the beginning
    page.wait_for_function("theatre.step > 0 && theatre.step < 59")
    page.get_by_role("button", name="Pause", exact=True).click()
    assert state(page, "playing") == [False]


def test_layers_and_heads_have_their_own_heat(tmp_path: Path, show: Open) -> None:
    """Check the heat of layer 1, with one patch of the first camera for all heads, and of layer 2.

    There each head attends to a patch of its own in the second camera.
    """
    attention = np.zeros((STEPS, 2, 3, 34))
    for step in range(STEPS):
        attention[step, 0, :, step % 16] = 1
        attention[step, 1, range(3), [16 + (step + head) % 16 for head in range(3)]] = 1
    # its first pictures are dark
    page = show(write(tmp_path, [replace(make_episode(STEPS), attention=attention)]))

    def hot(view: int) -> list[int]:
        centres = [1 / 14 + (place + 0.5) / 4 * 12 / 14 for place in range(4)]
        colours = [
            pixel(page, camera(view), across, down) for down in centres for across in centres
        ]
        return [
            place for place, colour in enumerate(colours) if colour[0] > 200 and colour[1] > 150
        ]

    for step, layer, head, third, wrist in [
        (0, "1", "mean", [0], []),
        (5, "1", "mean", [5], []),
        (5, "1", "2", [5], []),
        (5, "2", "1", [], [5]),
        (5, "2", "3", [], [7]),
        (5, "2", "mean", [], [5, 6, 7]),
    ]:
        scrub(page, step)
        page.locator("#layer").select_option(label=layer)
        page.locator("#head").select_option(label=head)
        settle(page)
        assert [hot(0), hot(1)] == [third, wrist], (step, layer, head)
    page.locator("#layer").select_option(label="1")
    scrub(page, 0)
    edge = 1 / 14
    assert pixel(page, camera(0), edge + 0.015, edge + 0.015)[0] > 200
    # cut away before there were patches
    assert pixel(page, camera(0), edge - 0.015, edge + 0.015)[0] < 60
    page.locator(camera(0)).hover(position={"x": 40, "y": 40})
    assert (
        page.locator("#cameras figcaption").first.inner_text()
        == "row 1, column 1: 100.0 % of recall"
    )
    page.get_by_label("heat map").uncheck()
    settle(page)
    assert [hot(0), shown_number(page, camera(0))] == [[], 0]


def test_policies_without_patches_or_without_recall(report: Path, show: Open) -> None:
    page = show(report, "episode=2&step=9&head=2")
    assert page.locator("#outcome").inner_text() == "wrong choice"
    assert shown_number(page, camera(0)) == 9
    assert page.locator("#recall-bars .name").all_text_contents() == list(SLOTS.others)
    scale = next(end for end in (0.1, 0.25, 0.5, 1) if EPISODES[1].attention[:, 0, 1].max() <= end)
    assert bars(page, "#recall-bars") == pytest.approx(
        EPISODES[1].attention[9, 0, 1] / scale, abs=0.02
    )
    assert not page.get_by_label("heat map").is_visible()
    assert not page.locator("#what-if").is_visible()
    page.locator("#next-episode").click()
    assert state(page, "episode", "step") == [2, 9]
    assert page.get_by_text("This policy has no recall to look into.").is_visible()
    assert not page.locator("#beliefs").is_visible()
    assert not page.locator("#layer").is_visible()


def test_a_token_without_a_name_is_not_shown(tmp_path: Path, show: Open) -> None:
    """Policies without language have a token in the place of the instruction."""
    layouts = [token_layout(features) for features in (STATE_FEATURES, IMAGE_FEATURES)]
    assert [layout.others[-1] for layout in layouts] == ["", "instruction"]
    layout = replace(LAYOUT, others=("body", ""))
    page = show(write(tmp_path, [make_episode(20, decisions=(10,), layout=layout)]))
    shown = page.locator("#recall-bars .reading:visible .name").all_text_contents()
    assert shown == ["third camera", "wrist camera", "body"]


def test_counterfactuals_change_plot_text_and_film(report: Path, show: Open) -> None:
    page = show(report, reduced_motion="reduce")
    edits = EPISODES[0].counterfactuals
    checked = "[...document.querySelectorAll('[name=edit]')].findIndex((each) => each.checked)"
    assert page.evaluate(checked) == 1  # the first that is not "as it was"
    groups = page.locator("#edit-choices legend").all_text_contents()
    assert groups == ["Decision 1, step 20 (2.7 s)", "Decision 2, step 40 (5.3 s)"]
    assert page.locator(".plan.after").count() == 1
    page.get_by_role("radio", name="as it was").first.check()
    assert page.locator(".plan.after").count() == 0
    verdicts = {
        1: "took left. ✓ It follows this memory.",
        2: "took nothing. ✗ It does not follow this memory.",
    }
    for place in (1, 5, 4, 2):
        edit, unedited = edits[place], edits[place - place % 3]
        page.get_by_role("radio", name=edit.name).nth(place // 3).check()
        assert state(page, "counterfactual") == [place]
        assert page.locator("#edit-explanation").inner_text() == edit.explanation
        assert page.locator("#edit-verdict").inner_text().endswith(verdicts[place % 3])
        assert f"asks for {edit.asks_for};" in page.locator("#edit-verdict").inner_text()
        assert bars(page, "#edit-bars") == pytest.approx(edit.shares, abs=0.01)
        assert bars(page, "#edit-bars", ".fill.before") == pytest.approx(unedited.shares, abs=0.01)
        asked = page.locator(".candidate.asked")
        centre = [float(asked.get_attribute(name) or 0) for name in ("cx", "cy")]
        plan = [
            [float(pixels) for pixels in point.split(",")]
            for point in (page.locator(".plan.after").get_attribute("points") or "").split()
        ]
        assert plan[-1] == pytest.approx(centre, abs=0.6)
        assert len(plan) == 1 + len(edit.plan)
        # as the third camera sees it
        assert (plan[-1][0] > plan[0][0]) == (edit.asks_for == "right")
        assert plan[-1][1] > plan[0][1]  # away from the robot is down
        for frame in (0, 11, 4):
            page.locator("#edit-scrubber").fill(str(frame))
            settle(page)
            negative = [255 - value for value in pixel(page, "#edit-picture", 0.5, 0.5)]
            assert number_of(negative) == edit.step + frame
    # nothing moves by itself for those who asked for that
    assert page.locator("#edit-play").inner_text() == "Play"


def test_a_chosen_counterfactual_plays_in_a_loop(report: Path, show: Open) -> None:
    page = show(report)
    first = page.evaluate("theatre.shownAfter")
    page.get_by_role("radio", name="erase the evidence").first.check()
    page.wait_for_function(f"theatre.shownAfter !== {first}")
    page.wait_for_function(f"theatre.shownAfter === {first}")  # from the beginning
    page.get_by_role("button", name="Pause what follows").click()
    assert state(page, "step", "playing") == [0, False]  # the stage stands still meanwhile


@pytest.mark.slow
def test_two_thousand_steps(tmp_path: Path, show: Open) -> None:
    steps = 2000
    page = show(
        write(tmp_path, [make_episode(steps, decisions=(900, 1500), layers=3, heads=8)]), "heat=off"
    )
    nodes, (before,) = page.evaluate("document.querySelectorAll('*').length"), state(page, "drawn")
    largest = page.evaluate(
        """async () => {
            let largest = 0;
            const scrubber = document.getElementById("scrubber");
            for (let event = 1; event <= 200; event += 1) {
                scrubber.value = String((event * 1237) % 2000);
                scrubber.dispatchEvent(new Event("input", { bubbles: true }));
                if (event % 3) await new Promise(requestAnimationFrame);
                largest = Math.max(largest, theatre.decoded);
            }
            return largest;
        }"""
    )
    assert largest <= 64
    assert state(page, "step") == [200 * 1237 % steps]
    assert shown_number(page, camera(0)) == 200 * 1237 % steps
    for step in (0, 1999, 1, 1000, 999, 1500):
        scrub(page, step)
        assert [shown_number(page, camera(0)), shown_number(page, camera(1))] == [step, step + 1]
    (after,) = state(page, "drawn")
    assert page.evaluate("document.querySelectorAll('*').length") == nodes
    assert after["timeline"] == before["timeline"]  # its still part was drawn once
    assert 1 < after["stage"] - before["stage"] < 200  # several events, one drawing
