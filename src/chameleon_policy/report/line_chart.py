"""A line chart as inline SVG: no library, no network, readable in light and dark."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT = 460, 256
LEFT, RIGHT, TOP, BOTTOM = 48, 20, 52, 36
LETTER = 6.6
"""Width of a letter of the legend, about."""

Line = Sequence[tuple[float, float]]


def line_chart(
    lines: Mapping[str, Line], *, title: str, x_label: str, logarithmic: bool = False
) -> str:
    """Named lines over a common x axis; a line takes its colour from the CSS classes `line-0`,
    `line-1`, ...
    """
    points = [point for line in lines.values() for point in line if not logarithmic or point[1] > 0]
    if not points:
        return f'<p class="faint">{escape(title)}: nothing to draw yet.</p>'
    x_ticks = _ticks(0.0, max(x for x, _ in points))
    lowest, highest = min(y for _, y in points), max(y for _, y in points)
    y_ticks = _decades(lowest, highest) if logarithmic else _ticks(min(0.0, lowest), highest)
    scale = math.log10 if logarithmic else float

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - x_ticks[0]) / (x_ticks[-1] - x_ticks[0])
        up = (scale(y) - scale(y_ticks[0])) / (scale(y_ticks[-1]) - scale(y_ticks[0]))
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (
            HEIGHT - TOP - BOTTOM
        )

    parts = [f'<text class="chart-title" x="{LEFT}" y="16">{escape(title)}</text>']
    for y in y_ticks:
        _, row = place(x_ticks[0], y)
        parts.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{row:.1f}" y2="{row:.1f}"/>'
        )
        parts.append(
            f'<text class="tick" x="{LEFT - 6}" y="{row + 4:.1f}" text-anchor="end">{y:g}</text>'
        )
    for x in x_ticks:
        column, _ = place(x, y_ticks[0])
        parts.append(
            f'<text class="tick" x="{column:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{x:g}</text>'
        )
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(
        f'<text class="tick" x="{middle}" y="{HEIGHT - 4}" text-anchor="middle">{escape(x_label)}</text>'
    )
    right = float(LEFT)
    for number, (name, line) in enumerate(lines.items()):
        path = " ".join(
            "{:.1f},{:.1f}".format(*place(x, y)) for x, y in line if not logarithmic or y > 0
        )
        parts.append(
            f'<polyline class="line line-{number}" points="{path}"><title>{escape(name)}</title></polyline>'
        )
        parts.append(
            f'<line class="line line-{number}" x1="{right:.0f}" x2="{right + 18:.0f}" y1="32" y2="32"/>'
        )
        parts.append(
            f'<text class="legend line-{number}" x="{right + 24:.0f}" y="36">{escape(name)}</text>'
        )
        right += 40 + LETTER * len(name)
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">{"".join(parts)}</svg>'


def _ticks(low: float, high: float) -> list[float]:
    """Four to eight round numbers that enclose a range."""
    span = max(high - low, 1e-9)
    step = 10 ** math.floor(math.log10(span / 4))
    step *= next(factor for factor in (1, 2, 5, 10) if span / (factor * step) <= 7)
    first = math.floor(low / step)
    return [round(step * number, 10) for number in range(first, math.ceil(high / step) + 1)]


def _decades(low: float, high: float) -> list[float]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    return [10.0**number for number in range(first, max(last, first + 1) + 1)]
