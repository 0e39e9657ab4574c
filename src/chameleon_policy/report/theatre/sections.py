"""What the report says of each run beside the theatre: scores, curves, clips and figures."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from chameleon_policy.camo.scoring import Summary
from chameleon_policy.rates import Rate
from chameleon_policy.report.demo_page import Clip
from chameleon_policy.report.evaluation_table import interval
from chameleon_policy.report.line_chart import Line, line_chart
from chameleon_policy.report.theatre.run import RunReport

CURVES = {
    "action": "Action loss (log scale)",
    "decision_loss": "Decision loss: just before the answer is needed (log scale)",
}
POINTS = 300
"""A curve of more points is averaged over equal stretches: it is drawn on about as many pixels."""


def scores_section(runs: Sequence[RunReport]) -> str:
    """A card per run with bars for MSR, DSR and SR of each task."""
    cards = "".join(_score_card(run) for run in runs if run.scores)
    if not cards:
        return ""
    return f"""<section id="scores"><h2>Scores</h2>
<p class="faint">MSR: the manipulation counts, whatever was chosen. DSR: of those, the choice is right; the red mark is a
guess. SR: both. The dark line and the brackets are the 95 % Wilson interval.</p>
<div class="grid">{cards}</div></section>
"""


def curves_section(runs: Sequence[RunReport]) -> str:
    """The losses of all runs, one chart each."""
    lines = {name: {run.name: _curve(run.metrics, name) for run in runs} for name in CURVES}
    charts = "".join(
        f'<div class="card">{line_chart(found, title=CURVES[name], x_label="optimizer step", logarithmic=True)}</div>'
        for name, found in lines.items()
        if any(found.values())
    )
    if not charts:
        return ""
    legend = "".join(
        f'<li><i class="swatch" style="background:var(--line-{number})"></i>{escape(run.name)}</li>'
        for number, run in enumerate(runs)
    )
    return f"""<section id="curves"><h2>How it learned</h2>
<div class="grid curves">{charts}</div><ul class="legend-list">{legend}</ul></section>
"""


def clips_section(runs: Sequence[RunReport]) -> str:
    """Videos, which are carried along."""
    groups = "".join(
        f'<h3>{escape(run.name)}</h3><div class="grid clips">{"".join(map(_clip, run.clips))}</div>'
        for run in runs
        if run.clips
    )
    return (
        f'<section id="clips"><h2>Successes and failures</h2>{groups}</section>\n' if groups else ""
    )


def figures_section(runs: Sequence[RunReport]) -> str:
    """What probes found."""
    groups = "".join(
        f'<h3>{escape(run.name)}</h3><div class="grid figures">'
        + "".join(_figure(caption, svg) for caption, svg in run.figures.items())
        + "</div>"
        for run in runs
        if run.figures
    )
    return f'<section id="figures"><h2>What probes found</h2>{groups}</section>\n' if groups else ""


def _score_card(run: RunReport) -> str:
    about = f"{run.method}, {run.preset}, {run.parameters:,} parameters"
    tasks = "".join(_task_scores(task, summary) for task, summary in run.scores.items())
    return f'<div class="card"><h3>{escape(run.name)}</h3><p class="hint">{escape(about)}</p>{tasks}</div>'


def _task_scores(task: str, summary: Summary) -> str:
    named: tuple[tuple[str, Rate, float | None], ...] = (
        ("MSR", summary.msr, None),
        ("DSR", summary.dsr, summary.chance),
        ("SR", summary.sr, None),
    )
    rows = "".join(_score_row(*each) for each in named)
    reasons = ", ".join(
        f"{count} x {escape(reason)}" for reason, count in list(summary.reasons.items())[:4]
    )
    return f'<h4>{escape(task)}, {summary.msr.count} episodes</h4>{rows}<p class="reasons">{reasons}</p>'


def _score_row(name: str, rate: Rate, chance: float | None) -> str:
    parts = ""
    if rate.count:
        parts += f'<span style="width:{100 * rate.value:.1f}%"></span>'
        parts += f'<em style="left:{100 * rate.low:.1f}%;width:{100 * (rate.high - rate.low):.1f}%"></em>'
    if chance is not None:
        parts += f'<i style="left:{100 * chance:.1f}%"></i>'
    return f'<div class="score"><b>{name}</b><div class="bar">{parts}</div><div class="number">{interval(rate)}</div></div>'


def _curve(metrics: Sequence[Mapping[str, Any]], name: str) -> Line:
    points = [(float(line["step"]), float(line[name])) for line in metrics if name in line]
    length = -(-len(points) // POINTS) or 1
    stretches = (points[start : start + length] for start in range(0, len(points), length))
    return [(_mean([x for x, _ in part]), _mean([y for _, y in part])) for part in stretches]


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers)


def _clip(clip: Clip) -> str:
    video = base64.b64encode(clip.path.read_bytes()).decode()
    caption = escape(clip.caption)
    return (
        f'<figure><video controls loop muted playsinline preload="auto" aria-label="{caption}" '
        f'src="data:video/mp4;base64,{video}"></video><figcaption>{caption}</figcaption></figure>'
    )


def _figure(caption: str, svg: str) -> str:
    # A drawing that is a document of its own becomes an image, so that its style and names stay
    # inside; others, such as line charts, take their style from this page.
    words = escape(caption)
    if "xmlns=" in svg[:500]:
        svg = f'<img src="data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}" alt="{words}">'
    return f'<figure class="card">{svg}<figcaption>{words}</figcaption></figure>'
