"""Rates with their intervals over a dial, as an SVG file that stands alone: for pages that bring no
style of their own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from chameleon_policy.rates import Rate

WIDTH, HEIGHT = 560, 300
LEFT, RIGHT, TOP, BOTTOM = 52, 64, 60, 46
COLOURS = ("#2f6fb2", "#c8553d", "#4f8a4f", "#8a5fb0")
INK, FAINT = "#6b7280", "#9ca3af55"
"""Readable on white and on black."""

Point = tuple[float, float, float, float]
"""x, rate, lower and upper end of its interval."""


def point_of(x: float, rate: Rate) -> Point:
    """A rate at x."""
    return x, rate.value, rate.low, rate.high


def interval_chart(
    lines: Mapping[str, Sequence[Point]],
    *,
    title: str,
    x_label: str,
    logarithmic: bool = False,
    levels: Mapping[str, float] | None = None,
    shaded: tuple[float, float] | None = None,
    ticks: Sequence[float] | None = None,
    bands: bool = False,
) -> str:
    """Lines of rates between 0 and 1 with bars for their intervals, or bands where points are many;
    every x has a tick.

    `levels` are dashed horizontal lines such as chance; `shaded` is a range of x, such as the one
    trained on; `ticks` are those of the x axis, of which the ones outside the lines are left out.
    """
    xs = sorted({point[0] for line in lines.values() for point in line})
    if not xs:
        raise ValueError(f"{title}: there is nothing to draw")
    scale = math.log10 if logarithmic else float
    first, last = scale(xs[0]), scale(xs[-1])
    margin = 0.05 * (last - first) or 1.0

    def across(x: float) -> float:
        return LEFT + (scale(x) - first + margin) / (last - first + 2 * margin) * (
            WIDTH - LEFT - RIGHT
        )

    def down(rate: float) -> float:
        return HEIGHT - BOTTOM - rate * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<text x="{LEFT}" y="20" font-size="15" font-weight="600" fill="{INK}">{escape(title)}</text>'
    ]
    if shaded is not None and shaded[0] <= xs[-1] and shaded[1] >= xs[0]:
        low, high = (across(min(max(x, xs[0]), xs[-1])) for x in shaded)
        parts.append(
            f'<rect x="{low - 6:.1f}" y="{TOP}" width="{high - low + 12:.1f}" height="{HEIGHT - TOP - BOTTOM}" '
            f'fill="{FAINT}" opacity="0.5"><title>trained on</title></rect>'
        )
    for rate in (0.0, 0.25, 0.5, 0.75, 1.0):
        row = down(rate)
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{row:.1f}" y2="{row:.1f}" stroke="{FAINT}"/>'
        )
        parts.append(text(LEFT - 8, row + 4, f"{rate:.0%}", "end"))
    for x in xs if ticks is None else [tick for tick in ticks if xs[0] <= tick <= xs[-1]]:
        parts.append(text(across(x), HEIGHT - BOTTOM + 18, f"{x:g}", "middle"))
    parts.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, x_label, "middle"))
    for name, rate in (levels or {}).items():
        row = down(rate)
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{row:.1f}" y2="{row:.1f}" stroke="{INK}" stroke-dasharray="4 4"/>'
        )
        parts.append(text(WIDTH - RIGHT + 6, row + 4, name, "start"))
    right = float(LEFT)
    shift = 0.0 if bands else 3.0  # beside one another where two lines meet
    for number, (name, line) in enumerate(lines.items()):
        colour, beside = COLOURS[number % len(COLOURS)], shift * (number - (len(lines) - 1) / 2)
        places = [(across(x) + beside, *(down(rate) for rate in rates)) for x, *rates in line]
        path = " ".join(f"{column:.1f},{row:.1f}" for column, row, _, _ in places)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        if bands:
            outline = [(column, high) for column, _, _, high in places] + [
                (column, low) for column, _, low, _ in places[::-1]
            ]
            band = " ".join(f"{column:.1f},{row:.1f}" for column, row in outline)
            parts.append(f'<polygon points="{band}" fill="{colour}" opacity="0.15"/>')
        for column, row, low, high in [] if bands else places:
            parts.append(
                f'<line x1="{column:.1f}" x2="{column:.1f}" y1="{low:.1f}" y2="{high:.1f}" stroke="{colour}"/>'
            )
            parts.append(f'<circle cx="{column:.1f}" cy="{row:.1f}" r="3" fill="{colour}"/>')
        parts.append(
            f'<line x1="{right:.0f}" x2="{right + 18:.0f}" y1="40" y2="40" stroke="{colour}" stroke-width="2"/>'
        )
        parts.append(text(right + 24, 44, name, "start"))
        right += 44 + 7 * len(name)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'font-family="system-ui, sans-serif" role="img" aria-label="{escape(title)}">{"".join(parts)}</svg>\n'
    )


def text(x: float, y: float, words: str, anchor: str, *, size: int = 12, bold: bool = False) -> str:
    """A line of text in an SVG."""
    weight = ' font-weight="600"' if bold else ""
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {place} font-size="{size}"{weight} fill="{INK}">{escape(words)}</text>'
