"""Charts show the values that they are given, say what they are, and are readable everywhere."""

from __future__ import annotations

import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from chameleon_policy.rates import Rate
from chameleon_policy.report import palette
from chameleon_policy.report.charts import (
    Point,
    inline_svg,
    interval_chart,
    learning_curves,
    line_chart,
    rate_bars,
    svg,
    trajectory_chart,
)

POINTS: list[Point] = [(1.0, 0.5, 0.25, 0.75), (10.0, 1.0, 0.5, 1.0), (100.0, 0.0, 0.0, 0.25)]


def only_axes(figure: Figure) -> Axes:
    (axes,) = figure.axes
    return axes


def curves(figure: Figure) -> dict[str, list[list[float]]]:
    """Name of a line -> the points that it was drawn through."""
    lines = only_axes(figure).lines
    return {
        str(line.get_label()): np.asarray(line.get_xydata()).tolist()
        for line in lines
        if not str(line.get_label()).startswith("_")
    }


def texts(drawing: str) -> list[str]:
    """All text of a drawing, as text and not as outlines."""
    return [
        "".join(each.itertext()).strip()
        for each in ElementTree.fromstring(drawing).iter("{http://www.w3.org/2000/svg}text")
    ]


def contrast(one: str, other: str) -> float:
    """Contrast of two colours as WCAG defines it."""

    def light(colour: str) -> float:
        channels = np.array([int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)])
        linear = np.where(
            channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4
        )
        return float(linear @ [0.2126, 0.7152, 0.0722]) + 0.05

    return max(light(one) / light(other), light(other) / light(one))


def test_rates_with_their_intervals() -> None:
    chart = interval_chart(
        {"DSR <1>": POINTS},
        title="a & b",
        x_label="steps",
        logarithmic=True,
        levels={"a guess": 0.5},
    )
    axes = only_axes(chart)
    assert curves(chart) == {"DSR <1>": [[x, rate] for x, rate, _, _ in POINTS]}
    (bars,) = axes.collections
    assert [segment.tolist() for segment in bars.get_segments()] == [  # type: ignore[attr-defined]
        [[x, low], [x, high]] for x, _, low, high in POINTS
    ]
    (level,) = [line for line in axes.lines if line.is_dashed()]
    assert list(level.get_ydata()) == [0.5, 0.5]
    assert axes.get_xscale() == "log"
    assert {"a & b", "DSR <1>", "a guess", "steps", "1", "10", "100", "50%"} <= set(
        texts(svg(chart))
    )


@pytest.mark.parametrize(
    ("trained_on", "shaded"), [((1, 10), (1, 10)), ((0.1, 5), (1, 5)), ((0.1, 0.5), None)]
)
def test_the_range_trained_on_is_shaded_as_far_as_the_chart_reaches(
    trained_on: tuple[float, float], shaded: tuple[float, float] | None
) -> None:
    chart = interval_chart(
        {"DSR": POINTS}, title="t", x_label="x", logarithmic=True, trained_on=trained_on
    )
    spans = [
        (patch.get_x(), patch.get_x() + patch.get_width()) for patch in only_axes(chart).patches
    ]  # type: ignore[attr-defined]
    assert spans == ([] if shaded is None else [pytest.approx(shaded)])
    assert ("trained on" in texts(svg(chart))) == (shaded is not None)


def test_bands_are_as_wide_as_the_intervals() -> None:
    chart = interval_chart({"h": POINTS}, title="t", x_label="x", bands=True, ticks=(0, 50, 200))
    (band,) = only_axes(chart).collections
    corners = {tuple(corner) for corner in band.get_paths()[0].vertices.tolist()}
    assert corners >= {(x, end) for x, _, low, high in POINTS for end in (low, high)}
    assert [label.get_text() for label in only_axes(chart).get_xticklabels()] == ["50"]


def test_there_must_be_something_to_draw() -> None:
    with pytest.raises(ValueError, match="empty: there is nothing to draw"):
        interval_chart({}, title="empty", x_label="x")
    with pytest.raises(ValueError, match="empty: there is nothing to draw"):
        line_chart({"a": [(0, 0.0)]}, title="empty", x_label="x", logarithmic=True)


@pytest.mark.parametrize("values", [[1.0, 1.0], [0.001, 0.0009], [5.0, 7e6], [1.0, 0.0]])
def test_a_line_chart_of_odd_ranges(values: list[float]) -> None:
    line = [(float(x), y) for x, y in enumerate(values)]
    chart = line_chart({"a": line}, title="t", x_label="x", logarithmic=True)
    assert curves(chart) == {"a": [[x, y] for x, y in line if y > 0]}
    drawn = texts(svg(chart))
    assert 2 <= sum(tick.get_text() in drawn for tick in only_axes(chart).get_yticklabels()) <= 12
    low, high = only_axes(chart).get_ylim()
    assert 0 < low < min(y for y in values if y > 0) <= max(values) < high
    assert not re.search(r"\b(nan|inf)\b", svg(chart))


def test_learning_curves_are_averaged_to_what_can_be_seen() -> None:
    logged = [{"step": step, "action": 2.0 * step} for step in range(1, 901)]
    (chart,) = learning_curves({"long": logged, "short": logged[:2], "none": []})
    found = curves(chart)
    assert found["long"] == [[3.0 * n + 2, 6.0 * n + 4] for n in range(300)]
    assert found["short"] == [[1, 2], [2, 4]] and found["none"] == []
    assert {"long", "short", "Action loss, log scale"} <= set(texts(svg(chart)))
    assert "long" not in texts(svg(learning_curves({"long": logged}, legend=False)[0]))


def test_bars_with_intervals_and_marks() -> None:
    rates = {"ours": [Rate.of(9, 10), Rate.of(1, 10)], "theirs": [Rate.of(5, 10), Rate.of(0, 10)]}
    chart = rate_bars(("Full", "Swap"), rates, title="t", marks=("paper", (0.9, 0.8)))
    axes = only_axes(chart)
    assert [bar.get_height() for bar in axes.patches] == [0.9, 0.1, 0.5, 0.0]  # type: ignore[attr-defined]
    *intervals, marks = (
        [sorted({y for _, y in segment}) for segment in each.get_segments()]  # type: ignore[attr-defined]
        for each in axes.collections
    )
    assert intervals == [[[rate.low, rate.high] for rate in found] for found in rates.values()]
    assert marks == [[0.9], [0.8]]
    assert [t for t in texts(svg(chart)) if t in ("ours", "theirs", "paper")] == [
        "ours",
        "theirs",
        "paper",
    ]
    assert {"Full", "Swap"} <= set(texts(svg(chart)))


def test_trajectories_are_seen_from_two_sides() -> None:
    points = np.random.default_rng(0).normal(size=(3, 5, 3))
    chart = trajectory_chart(points, [0, 2, 2], ("left", "middle", "right"), title="t", note="n")
    assert len(chart.axes) == 2
    for axes in chart.axes:
        drawn = [np.stack(line.get_data_3d(), axis=-1) for line in axes.lines]  # type: ignore[attr-defined]
        assert [line.tolist() for line in drawn if len(line) == 5] == points.tolist()
        ends = [line.tolist() for line in drawn if len(line) < 5]
        assert ends == [points[:1, -1].tolist(), points[1:, -1].tolist()]
    assert {"left", "right", "t", "n"} <= set(texts(svg(chart))) and "middle" not in svg(chart)


def test_a_file_is_the_same_every_time_and_asks_for_nothing() -> None:
    def draw() -> str:
        return svg(interval_chart({"a": POINTS}, title='"a" <b>', x_label="x"))

    assert draw() == draw()
    root = ElementTree.fromstring(draw())
    assert root.attrib["aria-label"] == '"a" <b>' and root.attrib["role"] == "img"
    # only the names of XML namespaces
    assert set(re.findall(r"https?://[\w./]+", draw())) == {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }


def test_charts_of_one_page_share_no_names_but_of_equal_things() -> None:
    drawings = [
        svg(interval_chart({"a": POINTS[:count]}, title="t", x_label="x")) for count in (2, 3)
    ]
    named = [
        {
            each.attrib["id"]: ElementTree.tostring(each)
            for each in root.iter()
            if "id" in each.attrib
        }
        for root in map(ElementTree.fromstring, drawings)
    ]
    assert all(named[0][name] == named[1][name] for name in named[0].keys() & named[1].keys())
    for drawing, names in zip(drawings, named, strict=True):
        assert set(re.findall(r"[#(]#?([mp][0-9a-f]{8,})", drawing)) <= names.keys()


def test_an_inline_chart_takes_the_colours_of_its_page() -> None:
    chart = interval_chart({"a": POINTS, "b": POINTS}, title="t", x_label="x")
    assert {"var(--ink)", "var(--line-0)", "var(--line-1)"} <= set(
        re.findall(r"var\([\w-]+\)", inline_svg(chart))
    )
    assert not re.search(r"(fill|stroke): #", inline_svg(chart))
    assert "<style" not in inline_svg(chart)  # it would reach the whole page


def test_colours_are_legible() -> None:
    for name, colour in palette.PALETTE.items():
        for mode, shown in ((0, colour.light), (1, colour.dark)):
            card = palette.PAGE_COLOURS["card"][mode]
            assert contrast(shown, card) >= (4.5 if name in ("ink", "faint") else 3), name
            assert contrast(colour.image, ("#ffffff", "#0d1117")[mode]) >= 3, name
            assert contrast(colour.image, card) >= 3, name


@pytest.mark.parametrize("command", ["demo", "probe", "report"])
def test_without_matplotlib_a_command_says_what_to_install(command: str) -> None:
    code = (
        "import sys; sys.modules['matplotlib'] = None;from chameleon_policy.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code, command], capture_output=True, text=True)
    assert done.returncode == 2
    assert "this command needs matplotlib" in done.stderr
    assert "pip install 'chameleon-policy[camo,report,train]'" in done.stderr
