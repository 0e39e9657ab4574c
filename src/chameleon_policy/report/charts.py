"""Charts as SVG, drawn with matplotlib: the same input gives the same bytes.

Each function returns a matplotlib figure. `svg` turns it into the text of a file that is legible on
light and dark backgrounds; `inline_svg` into an element of a page, in the page's own colours.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np
import numpy.typing as npt
from markupsafe import Markup, escape
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator
from matplotlib.transforms import offset_copy

from chameleon_policy.rates import Rate
from chameleon_policy.report.palette import FAINT, INK, LINES, with_page_colours

STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "chameleon",
    "font.family": "sans-serif",
    # It comes with matplotlib, so text is measured alike everywhere.
    "font.sans-serif": "DejaVu Sans",
    "font.size": 8.5,
    "text.color": INK,
    "text.parse_math": False,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelcolor": INK,
    "axes.labelsize": 8.5,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.spines.bottom": False,
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "grid.color": FAINT,
    "grid.alpha": 0.35,
    "grid.linewidth": 0.8,
    "xtick.color": INK,
    "xtick.major.size": 0,
    "xtick.minor.size": 0,
    "ytick.color": INK,
    "ytick.major.size": 0,
    "ytick.minor.size": 0,
    "figure.facecolor": "none",
    "figure.constrained_layout.use": True,
    "legend.frameon": False,
    "legend.borderaxespad": 0,
    "legend.borderpad": 0,
    "legend.handlelength": 1.6,
    "legend.columnspacing": 1.4,
}
SIZE = (5.85, 3.15)
"""Inches; 96 CSS pixels each."""
LEGEND_LETTERS = 12.6
"""Letters of a legend that fit into an inch."""
OVERLAP = 2.2
"""Points between lines whose error bars would cover each other."""

VIEWS = (-115.0, 155.0)
"""Sides from which trajectories are drawn, in degrees around the vertical axis."""
CURVES = {
    "action": "Action loss, log scale",
    "decision_loss": "Decision loss, log scale",
}
"""Metric -> title of its learning curve."""
CURVE_POINTS = 300
"""A learning curve of more points is averaged over stretches of equal length."""

Point = tuple[float, float, float, float]
"""x, a rate, and the lower and upper end of its interval."""
Line = Sequence[tuple[float, float]]


def point_of(x: float, rate: Rate) -> Point:
    """Return the point of an interval chart for a rate at x."""
    return x, rate.value, rate.low, rate.high


@rc_context(STYLE)
def interval_chart(
    lines: Mapping[str, Sequence[Point]],
    *,
    title: str,
    x_label: str,
    logarithmic: bool = False,
    levels: Mapping[str, float] | None = None,
    trained_on: tuple[float, float] | None = None,
    ticks: Sequence[float] | None = None,
    bands: bool = False,
) -> Figure:
    """Draw lines of rates over x, with error bars, or with bands where points are many.

    `levels` are dashed horizontal lines such as chance; `trained_on` is a range of x to shade;
    `ticks` are those of the x axis (default: every x).
    """
    xs = sorted({point[0] for line in lines.values() for point in line})
    if not xs:
        raise ValueError(f"{title}: there is nothing to draw")
    figure, axes = _new_figure(title)
    _rate_axis(axes)
    axes.set_xlabel(x_label)
    _x_axis(axes, xs, xs if ticks is None else ticks, logarithmic=logarithmic)
    shading = []
    if trained_on is not None and trained_on[0] <= xs[-1] and trained_on[1] >= xs[0]:
        low, high = (min(max(end, xs[0]), xs[-1]) for end in trained_on)
        shading = ["trained on"]
        axes.axvspan(low, high, color=FAINT, linewidth=6, alpha=0.2, label=shading[0], zorder=0)
    for name, rate in (levels or {}).items():
        _level(axes, name, rate)
    for number, (name, line) in enumerate(lines.items()):
        columns = [list(column) for column in zip(*line, strict=True)] or [[]] * 4
        shift = 0.0 if bands else OVERLAP * (number - (len(lines) - 1) / 2)
        _interval_line(axes, name, columns, LINES[number % len(LINES)], shift, bands=bands)
    _add_legend(figure, axes, [*lines, *shading])
    return figure


@rc_context(STYLE)
def line_chart(
    lines: Mapping[str, Line],
    *,
    title: str,
    x_label: str,
    logarithmic: bool = False,
    legend: bool = True,
) -> Figure:
    """Draw named lines; a logarithmic chart leaves out values that are not positive."""
    shown = {
        name: [(x, y) for x, y in line if y > 0 or not logarithmic] for name, line in lines.items()
    }
    if not any(shown.values()):
        raise ValueError(f"{title}: there is nothing to draw")
    figure, axes = _new_figure(title, size=(4.8, 2.7))
    axes.set_xlabel(x_label)
    for number, (name, line) in enumerate(shown.items()):
        x, y = zip(*line, strict=True) if line else ((), ())
        axes.plot(x, y, color=LINES[number % len(LINES)], linewidth=1.4, label=name)
    if logarithmic:
        _logarithmic_y_axis(axes)
    if legend:
        _add_legend(figure, axes, list(shown))
    return figure


def learning_curves(
    metrics: Mapping[str, Sequence[Mapping[str, Any]]], *, legend: bool = True
) -> list[Figure]:
    """Draw a chart of each loss, with a line for every run.

    `metrics` has the lines of metrics.jsonl of each run by its name; a loss that no run has logged
    has no chart.
    """
    charts = []
    for metric, title in CURVES.items():
        lines = {name: _curve(logged, metric) for name, logged in metrics.items()}
        if any(y > 0 for line in lines.values() for _, y in line):
            charts.append(
                line_chart(
                    lines, title=title, x_label="optimizer step", logarithmic=True, legend=legend
                )
            )
    return charts


def _curve(logged: Sequence[Mapping[str, Any]], metric: str) -> Line:
    points = [(line["step"], line[metric]) for line in logged if metric in line]
    length = -(-len(points) // CURVE_POINTS) or 1
    stretches = (points[start : start + length] for start in range(0, len(points), length))
    return [(fmean(x for x, _ in part), fmean(y for _, y in part)) for part in stretches]


@rc_context(STYLE)
def rate_bars(
    groups: Sequence[str],
    rates: Mapping[str, Sequence[Rate]],
    *,
    title: str,
    marks: tuple[str, Sequence[float]],
) -> Figure:
    """Draw bars with intervals: for every group one of each series, and a dashed mark.

    `marks` are a name for the legend and a rate for each group.
    """
    figure, axes = _new_figure(title)
    _rate_axis(axes)
    positions = np.arange(len(groups))
    width = 0.72 / len(rates)
    for number, (name, found) in enumerate(rates.items()):
        middle = positions + (number - (len(rates) - 1) / 2) * width
        values = np.array([rate.value for rate in found])
        low, high = ([rate.low for rate in found], [rate.high for rate in found])
        colour = LINES[number % len(LINES)]
        face = to_rgba(colour, 0.45)
        axes.bar(middle, values, 0.9 * width, color=face, edgecolor=colour, label=name)
        axes.vlines(middle, low, high, colors=INK, linewidths=1.2)
    name, values = marks[0], np.array(marks[1])
    axes.hlines(
        values,
        positions - 0.42,
        positions + 0.42,
        colors=INK,
        linestyles="dashed",
        label=name,
        zorder=3,
    )
    axes.set_xticks(positions, groups)
    _add_legend(figure, axes, [*rates, name])
    return figure


@rc_context(STYLE)
def trajectory_chart(
    points: npt.NDArray[np.floating],
    labels: Sequence[int],
    names: Sequence[str],
    *,
    title: str,
    note: str,
) -> Figure:
    """Draw trajectories (N, T, 3) that end with a dot, coloured by label.

    The same cloud is drawn from two sides; see VIEWS.
    """
    figure = Figure(figsize=(6.4, 3.8), label=title)
    figure.set_layout_engine("none")
    figure.text(0.015, 0.955, title, fontsize=10.5, fontweight="bold", va="center")
    figure.text(0.015, 0.03, note, va="center")
    low, high = points.min((0, 1)), points.max((0, 1))
    for number, azimuth in enumerate(VIEWS):
        box = (number / len(VIEWS), 0.05, 1 / len(VIEWS), 0.84)
        axes: Any = figure.add_axes(box, projection="3d", proj_type="ortho", azim=azimuth, elev=-20)
        axes.set_axis_off()
        axes.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), zlim=(low[2], high[2]))
        axes.set_box_aspect(high - low, zoom=1.22)
        for label in sorted(set(labels)):
            found = points[np.asarray(labels) == label]
            colour = LINES[label % len(LINES)]
            for trajectory in found:
                axes.plot(*trajectory.T, color=colour, linewidth=0.8, alpha=0.45, clip_on=False)
            axes.plot(
                *found[:, -1].T,
                "o",
                color=colour,
                markersize=3.5,
                label=names[label],
                clip_on=False,
            )
    handles = axes.get_legend_handles_labels()
    figure.legend(*handles, loc="upper left", bbox_to_anchor=(0.01, 0.915), handlelength=1, ncols=3)
    return figure


@rc_context(STYLE)
def svg(figure: Figure) -> str:
    """Return the figure as a file that stands alone."""
    file = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(file, format="svg", metadata=nothing)
    text = re.sub(r"<[^>]+>", _tidy_tag, file.getvalue())
    # In a page, a style sheet would reach beyond the chart; inherited attributes do not.
    text = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>\s*", "", text, count=1, flags=re.DOTALL)
    lines = 'stroke-linejoin="round" stroke-linecap="butt"'
    title = escape(figure.get_label())
    root = f'<svg role="img" aria-label="{title}" {lines} '
    return text[text.index("<svg ") :].replace("<svg ", root, 1)


def inline_svg(figure: Figure) -> Markup:
    """Return the figure as an element of a page, whose light and dark colours it takes."""
    return Markup(with_page_colours(svg(figure)))  # noqa: S704  # matplotlib escapes texts


def _tidy_tag(tag: re.Match[str]) -> str:
    text = tag[0].replace("'DejaVu Sans'", "system-ui")
    # Names that nothing refers to; several charts of one page would share them.
    text = re.sub(r' id="[\w.]+_\d+"', "", text)
    return re.sub(r"\d+\.\d{3,}", lambda number: f"{float(number[0]):.2f}", text)


def _new_figure(title: str, size: tuple[float, float] = SIZE) -> tuple[Figure, Axes]:
    figure = Figure(figsize=size, label=title)
    axes = figure.add_subplot()
    axes.set_title(title)
    return figure, axes


def _rate_axis(axes: Axes) -> None:
    axes.set_ylim(0, 1.02)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0%", "25%", "50%", "75%", "100%"])


def _x_axis(axes: Axes, xs: Sequence[float], ticks: Sequence[float], *, logarithmic: bool) -> None:
    first, last = xs[0], xs[-1]
    if logarithmic:
        axes.set_xscale("log")
        factor = (last / first) ** 0.05 if last > first else 2.0
        axes.set_xlim(first / factor, last * factor)
    else:
        margin = 0.05 * (last - first) or 1.0
        axes.set_xlim(first - margin, last + margin)
    shown = [tick for tick in ticks if first <= tick <= last]
    axes.set_xticks(shown, [f"{tick:g}" for tick in shown])
    axes.minorticks_off()


def _logarithmic_y_axis(axes: Axes) -> None:
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    middle = math.sqrt(low * high)
    # Wide enough for two ticks.
    low, high = axes.set_ylim(min(low, middle / 2.3), max(high, 2.3 * middle))
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 1000 * low else (1,)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.minorticks_off()


def _level(axes: Axes, name: str, rate: float) -> None:
    axes.axhline(rate, color=INK, linewidth=0.9, linestyle=(0, (4, 4)))
    axes.text(1.01, rate, name, transform=axes.get_yaxis_transform(), va="center")


def _interval_line(
    axes: Axes, name: str, columns: list[list[float]], colour: str, shift: float, *, bands: bool
) -> None:
    x, rate, low, high = columns
    if bands:
        axes.plot(x, rate, color=colour, linewidth=1.5, label=name)
        axes.fill_between(x, low, high, color=colour, alpha=0.16, linewidth=0)
        return
    shifted = offset_copy(axes.transData, axes.get_figure(root=True), x=shift, units="points")
    (drawn,) = axes.plot(x, rate, color=colour, linewidth=1.5, marker="o", markersize=4, label=name)
    drawn.set(transform=shifted, clip_on=False)
    axes.vlines(x, low, high, colors=colour, linewidths=1.1, transform=shifted)


def _add_legend(figure: Figure, axes: Axes, names: Sequence[str]) -> None:
    """Put the legend between title and chart, in as many rows as it needs."""
    handles = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    widths = [len(name) + 6 for name in names]
    columns, fit = len(names), int(LEGEND_LETTERS * figure.get_figwidth())
    if sum(widths) > fit:
        columns = max(1, fit // max(widths))
    rows = math.ceil(len(names) / columns)
    axes.set_title(axes.get_title(loc="left"), pad=10 + 12.5 * rows)
    names = [name for name in names if name in handles]
    shown = [handles[name] for name in names]
    axes.legend(shown, names, loc="lower left", bbox_to_anchor=(0, 1.03), ncols=columns)
