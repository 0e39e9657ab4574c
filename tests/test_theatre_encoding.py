"""Episodes of the theatre as text, and the parts of its page that need no browser."""

from __future__ import annotations

import base64
import io
import json
import re
from dataclasses import replace
from html import unescape
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from chameleon_policy.probes.theatre_episode import TokenLayout
from chameleon_policy.report.charts import line_chart
from chameleon_policy.report.pages import Clip
from chameleon_policy.report.theatre.encoding import decode_shares, encode_episode, encode_shares
from chameleon_policy.report.theatre.page import report_page
from theatre_episodes import camera_frames, flat_frames, make_episode, make_run, number_of, shares


def picture(text: str) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(text))).convert("RGB"))


@pytest.mark.parametrize("sharpness", [0.0, 0.5, 3.0, 12.0])
def test_shares_come_back(sharpness: float) -> None:
    given = shares(np.random.default_rng(1), 50, 2, 8, 34, sharpness=sharpness)
    found = decode_shares(encode_shares(given), given.shape)
    assert np.abs(found - given).max() < 1.5 / 255
    np.testing.assert_allclose(found.sum(-1), 1)


def test_shares_of_nothing() -> None:
    assert encode_shares(np.zeros((5, 0, 0, 0))) == ""
    assert not decode_shares(encode_shares(np.zeros((5, 3))), (5, 3)).any()


def test_everything_but_pictures_is_kept_to_the_digit() -> None:
    episode = make_episode(decisions=(20, 40))
    encoded = json.loads(json.dumps(encode_episode(episode), allow_nan=False))
    for given, found in zip(episode.beliefs, encoded["beliefs"], strict=True):
        np.testing.assert_allclose(found["shares"], given.shares, atol=0.00051)
        assert (found["question"], found["truth"]) == (given.question, given.truth)
    np.testing.assert_allclose(encoded["positions"], episode.positions, atol=0.00051)
    np.testing.assert_allclose(
        encoded["counterfactuals"][4]["plan"], episode.counterfactuals[4].plan, atol=0.00051
    )
    assert [name for name, length in encoded["phases"] for _ in range(length)] == list(
        episode.phases
    )
    assert encoded["decisions"] == [20, 40]


def test_pictures_come_back_and_equal_ones_are_stored_once() -> None:
    still = np.repeat(flat_frames(range(4)), 5, axis=0)  # 20 steps, 4 pictures
    episode = make_episode(20, decisions=(10,), frames={"third": still})
    encoded = encode_episode(episode)
    pictures, frames = encoded["pictures"]["third"]["unique"], encoded["frames"]["third"]
    assert frames == [step // 5 for step in range(20)]
    assert [number_of(picture(text)[16, 16]) for text in pictures[:4]] == [0, 1, 2, 3]
    unedited, edited = encoded["counterfactuals"][:2]
    assert unedited["frames"] == frames[10:]  # the same pictures, not copies of them
    assert min(edited["frames"]) == 4
    assert len(pictures) == 4 + 2


def test_a_picture_takes_at_most_three_kilobytes() -> None:
    frames = camera_frames(4, seed=0)
    encoded = encode_episode(make_episode(4, decisions=(2,), frames={"third": frames}, edits=0))
    files = encoded["pictures"]["third"]["unique"]
    assert max(len(base64.b64decode(text)) for text in files) < 3000
    assert np.abs(picture(files[0]).astype(float) - frames[0]).mean() < 5


@pytest.mark.slow
def test_six_episodes_make_a_page_under_25_megabytes() -> None:
    frames = {view: camera_frames(200, seed) for seed, view in enumerate(("third", "wrist"))}
    episodes = [
        make_episode(200, seed=seed, decisions=(90,), layers=3, heads=8, frames=frames)
        for seed in range(6)
    ]
    assert len(report_page([make_run()], episodes, []).encode()) < 25e6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"phases": ("evidence",) * 3}, "3 phases need as many steps"),
        (
            {"layout": TokenLayout({"third": (3, 3)}, ())},
            "the layout has 9 tokens, attention is over 34",
        ),
        ({"phases": (), "frames": {}}, "0 phases"),
    ],
)
def test_parts_that_do_not_fit_are_named(change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        encode_episode(replace(make_episode(), **change))


def test_a_counterfactual_outside_the_episode_is_named() -> None:
    episode = make_episode()
    late = replace(episode.counterfactuals[1], step=60)
    with pytest.raises(ValueError, match="'swap the relevant traces' is at step 60 of 60"):
        encode_episode(replace(episode, counterfactuals=(late,)))


def test_sections_without_data_are_left_out() -> None:
    headings = re.compile(r'<section id="(\w+)"')
    assert headings.findall(report_page([], [], [])) == []
    assert "<script" not in report_page([], [], [])
    assert headings.findall(report_page([], [make_episode(4, decisions=(2,))], [])) == ["theatre"]
    assert headings.findall(report_page([make_run(metrics=())], [], ["a fact"])) == [
        "scores",
        "facts",
    ]


def test_all_sections(tmp_path: Path) -> None:
    (tmp_path / "clip.mp4").write_bytes(b"a video")
    chart = line_chart({"a": [(0, 1.0), (1, 2.0)]}, title="What a probe <found>", x_label="x")
    run = make_run(clips=[Clip(tmp_path / "clip.mp4", 'a "clip"')], figures={"a caption": chart})
    page = report_page([run, make_run("another")], [], ["made by `chameleon report`, 1 < 2"])
    assert re.findall(r'<section id="(\w+)"', page) == [
        "scores",
        "curves",
        "clips",
        "figures",
        "facts",
    ]
    assert "93 [79, 98]" in page
    bar = page[page.index("DSR</b>") :].partition("</div></div>")[0]
    assert re.findall(r"(left|width):([\d.]+)%", bar) == [
        ("width", "93.3"),
        ("left", "33.3"),
        ("left", "78.7"),
        ("width", "19.5"),
    ]
    assert f"data:video/mp4;base64,{base64.b64encode(b'a video').decode()}" in page
    assert unescape(page).count('a "clip"') == 2  # below it, and for screen readers
    assert "<figcaption>a caption" in page and unescape(page).count("What a probe <found>") == 2
    assert "<code>chameleon report</code>, 1 &lt; 2" in page
    assert page.count('<svg role="img"') == 1 + 2  # the chart, and a curve of each loss


def test_no_chart_is_outlined_for_white_paper() -> None:
    chart = line_chart({"a": [(0, 1.0), (1, 2.0)]}, title="t", x_label="x")
    page = report_page([make_run(figures={"a caption": chart})], [], [])
    drawn = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(drawn) == 3
    assert not any(re.search(r"(fill|stroke): #", each) for each in drawn)
