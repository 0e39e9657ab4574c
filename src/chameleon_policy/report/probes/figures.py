"""Figures of what probes found, as SVG files that stand alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Literal

from chameleon_policy.probes.addressability import PAPER_EDITS, paper_edits
from chameleon_policy.rates import Rate
from chameleon_policy.report.interval_chart import COLOURS, FAINT, INK, Point, interval_chart, text
from chameleon_policy.report.probes import paper

Finding = Mapping[str, Any]


def labels(findings: Sequence[Finding]) -> list[str]:
    """What tells findings apart in few words: their methods, if these differ, or the names of their
    runs.
    """
    methods = [finding["method"] for finding in findings]
    return (
        methods if len(set(methods)) == len(methods) else [finding["run"] for finding in findings]
    )


def over_time(finding: Finding) -> str:
    """How well each place of the answer is read from h, through the episode."""
    found = finding["separability"]["over_time"]
    chance = finding["prospectiveness"]["chance"]
    names = {"answer": "answer", "first": "first seasoning", "second": "second", "third": "third"}
    return interval_chart(
        {names[name]: _points(line) for name, line in found.items()},
        title=f"{finding['task']}: what can be read from h",
        x_label="control steps, first decision at 0",
        levels={"chance": chance},
        ticks=range(-60, 21, 20),
        bands=True,
    )


def before_the_decision(findings: Sequence[Finding]) -> str:
    """How well the next choice is read, over time relative to its decision: all runs, and the first
    run's traces.
    """
    first = findings[0]["prospectiveness"]
    names = labels(findings)
    lines = {
        f"h, {name}": _points(each["prospectiveness"]["working"])
        for name, each in zip(names, findings, strict=True)
    }
    lines[f"traces, {names[0]}"] = _points(first["traces"])
    return interval_chart(
        lines,
        title=f"{findings[0]['task']}: the next choice, read before it is due",
        x_label="control steps, decision at 0",
        ticks=range(-40, 11, 10),
        bands=True,
        levels={"chance": first["chance"], f"{first['threshold']:.0%}": first["threshold"]},
    )


def edited_memories(findings: Sequence[Finding], rule: Literal["decoded", "attended"]) -> str:
    """The paper's four interventions: bars with intervals for each finding, and the paper's numbers
    as marks.
    """
    width, height, left, top, bottom = 560, 300, 52, 60, 46
    inner = width - left - 20
    group, each = inner / len(PAPER_EDITS), 0.7 * inner / len(PAPER_EDITS) / len(findings)

    def down(rate: float) -> float:
        return height - bottom - rate * (height - top - bottom)

    title = f"{findings[0]['task']}: choices after edits of {rule} traces"
    parts = [
        f'<text x="{left}" y="20" font-size="15" font-weight="600" fill="{INK}">{escape(title)}</text>'
    ]
    for rate in (0.0, 0.25, 0.5, 0.75, 1.0):
        row = down(rate)
        parts.append(
            f'<line x1="{left}" x2="{width - 20}" y1="{row:.1f}" y2="{row:.1f}" stroke="{FAINT}"/>'
        )
        parts.append(text(left - 8, row + 4, f"{rate:.0%}", "end"))
    for number, (name, edit) in enumerate(zip(PAPER_EDITS, paper_edits(rule), strict=True)):
        start = left + group * (number + 0.15)
        parts.append(text(left + group * (number + 0.5), height - bottom + 18, name, "middle"))
        for place, finding in enumerate(findings):
            rows = {
                row["name"]: Rate.from_dict(row["follows"])
                for row in finding["addressability"]["rows"]
            }
            found, x = rows[edit], start + place * each
            parts.append(
                f'<rect x="{x:.1f}" y="{down(found.value):.1f}" width="{each - 3:.1f}" '
                f'height="{down(0) - down(found.value):.1f}" fill="{COLOURS[place % len(COLOURS)]}"/>'
            )
            middle = x + (each - 3) / 2
            parts.append(
                f'<line x1="{middle:.1f}" x2="{middle:.1f}" y1="{down(found.low):.1f}" y2="{down(found.high):.1f}" '
                f'stroke="{INK}" stroke-width="1.5"/>'
            )
        row = down(paper.ADDRESSABILITY[name] / 100)
        ends = f'x1="{start - 4:.1f}" x2="{start + 0.7 * group + 2:.1f}"'
        parts.append(
            f'<line {ends} y1="{row:.1f}" y2="{row:.1f}" stroke="{INK}" stroke-width="2" stroke-dasharray="5 3"/>'
        )
    right = float(left)
    for place, name in enumerate([*labels(findings), "the paper, seasonings"]):
        if place < len(findings):
            colour = COLOURS[place % len(COLOURS)]
            parts.append(f'<rect x="{right:.0f}" y="34" width="12" height="12" fill="{colour}"/>')
        else:
            parts.append(
                f'<line x1="{right:.0f}" x2="{right + 14:.0f}" y1="40" y2="40" stroke="{INK}" stroke-width="2" '
                'stroke-dasharray="5 3"/>'
            )
        parts.append(text(right + 18, 44, name, "start"))
        right += 34 + 6.6 * len(name)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="system-ui, sans-serif" role="img" aria-label="{escape(title)}">{"".join(parts)}</svg>\n'
    )


def _points(line: Sequence[Mapping[str, Any]]) -> list[Point]:
    return [(point["step"], point["value"], point["low"], point["high"]) for point in line]
