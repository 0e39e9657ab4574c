"""The page that `chameleon demo` writes: two policies side by side, one with memory and one
without.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from chameleon_policy.camo import Summary
from chameleon_policy.rates import Rate
from chameleon_policy.report.evaluation_table import interval
from chameleon_policy.report.line_chart import line_chart

STYLE = """
:root { color-scheme: light dark; --ink: #22242a; --faint: #6b6e76; --paper: #fcfbf8; --card: #ffffff; --edge: #dedcd6;
        --with: #1f6ea8; --without: #d6782e; --chance: #be2640; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8e6e1; --faint: #9a9ca3; --paper: #17181b; --card: #202226; --edge: #383a40; --with: #5fb0ea;
          --without: #f0a05a; --chance: #ff6b81; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1040px; padding: 28px 20px 60px; background: var(--paper); color: var(--ink);
       font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.7rem; margin: 0 0 .3rem; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; }
.faint, figcaption { color: var(--faint); }
.pair, .three { display: grid; grid-template-columns: 1fr 1fr; gap: 18px; }
.three { grid-template-columns: 1fr 1fr 1fr; }
@media (max-width: 720px) { .pair, .three { grid-template-columns: 1fr; } }
.card { background: var(--card); border: 1px solid var(--edge); border-radius: 10px; padding: 16px 18px; }
.card h3 { margin: 0 0 .5rem; font-size: 1.05rem; }
.with h3, .line-0.legend { color: var(--with); fill: var(--with); }
.without h3, .line-1.legend { color: var(--without); fill: var(--without); }
.score { display: grid; grid-template-columns: 2.8rem 1fr 7.4rem; gap: 10px; align-items: center; margin: 6px 0; }
.bar { position: relative; height: 14px; border-radius: 7px; background: var(--edge); }
.bar span { position: absolute; inset: 0 auto 0 0; border-radius: 7px; background: var(--with); }
.without .bar span { background: var(--without); }
.bar i { position: absolute; top: -4px; bottom: -4px; width: 2px; background: var(--chance); }
.number { font-variant-numeric: tabular-nums; text-align: right; white-space: nowrap; }
svg { width: 100%; height: auto; } svg .grid { stroke: var(--edge); } svg .tick { fill: var(--faint); font-size: 11px; }
svg .chart-title { fill: var(--ink); font-size: 13px; } svg .legend { font-size: 12px; }
svg .line { fill: none; stroke-width: 1.8; } svg .line-0 { stroke: var(--with); } svg .line-1 { stroke: var(--without); }
svg .legend { stroke: none; }
figure { margin: 0; } video { width: 100%; border-radius: 8px; border: 1px solid var(--edge); background: #000; }
figcaption { font-size: .9rem; margin: 4px 0 12px; }
code { background: var(--edge); padding: 1px 5px; border-radius: 4px; }
"""


@dataclass(frozen=True)
class Clip:
    """A video and what it shows."""

    path: Path
    caption: str


@dataclass(frozen=True)
class Contender:
    """One of the two policies on the page."""

    name: str
    summary: Summary
    metrics: Sequence[dict[str, Any]]
    clips: Sequence[Clip]


@dataclass(frozen=True)
class Showing:
    """A task as the policy that comes with the package plays it."""

    task: str
    instruction: str
    right: int
    episodes: int
    clip: Clip


def demo_page(
    task: str,
    instruction: str,
    contenders: Sequence[Contender],
    facts: Sequence[str],
    showings: Sequence[Showing] = (),
) -> str:
    """One page without network: scores, curves, clips."""
    first = contenders[0].summary
    kinds = ("with", "without")
    scores = "".join(
        _score_card(kind, contender) for kind, contender in zip(kinds, contenders, strict=True)
    )
    clips = "".join(
        _clip_card(kind, contender) for kind, contender in zip(kinds, contenders, strict=True)
    )
    curves = [
        _curve(contenders, "action", "Action loss (log scale)"),
        _curve(
            contenders,
            "decision_loss",
            "Decision loss: just before the answer is needed (log scale)",
        ),
    ]
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Chameleon: memory against chance</title><style>{STYLE}</style></head><body>
<h1>Memory against chance</h1>
<p>{escape(instruction)} A hand shows which of three plates was used; then the scene looks the same whatever the answer is,
to the last bit, and only then may the robot act. Two policies with the same parameters and data, trained from scratch on
this machine: one remembers, the other forgets everything after each control step.</p>
<h2>Scores on {first.msr.count} held-out episodes of {escape(task)}</h2>
<div class="pair">{scores}</div>
<p class="faint">MSR: the manipulation counts, whatever was chosen. DSR: of those, the choice is right; the red mark is a
guess ({first.chance:.0%}). SR: both. In brackets the 95 % Wilson interval.</p>
<h2>What they do</h2>
<div class="pair">{clips}</div>
<h2>How they learned</h2>
<div class="pair">{"".join(f'<div class="card">{curve}</div>' for curve in curves)}</div>
{_shipped(showings) if showings else ""}<h2>How it was made</h2>
<ul>{"".join(f"<li>{fact}</li>" for fact in facts)}</ul>
</body></html>
"""


def _score_card(kind: str, contender: Contender) -> str:
    summary = contender.summary
    named = (
        ("MSR", summary.msr, None),
        ("DSR", summary.dsr, summary.chance),
        ("SR", summary.sr, None),
    )
    rows = "".join(_score_row(*each) for each in named)
    reasons = ", ".join(
        f"{count} x {escape(reason)}" for reason, count in list(summary.reasons.items())[:4]
    )
    return f'<div class="card {kind}"><h3>{escape(contender.name)}</h3>{rows}<p class="faint">{reasons}</p></div>'


def _score_row(name: str, rate: Rate, chance: float | None) -> str:
    value = 0.0 if rate.count == 0 else rate.value
    mark = "" if chance is None else f'<i style="left:{100 * chance:.1f}%"></i>'
    bar = f'<div class="bar"><span style="width:{100 * value:.1f}%"></span>{mark}</div>'
    return f'<div class="score"><b>{name}</b>{bar}<div class="number">{interval(rate)}</div></div>'


def _clip_card(kind: str, contender: Contender) -> str:
    figures = "".join(map(_figure, contender.clips))
    return f'<div class="card {kind}"><h3>{escape(contender.name)}</h3>{figures or "<p>No clip.</p>"}</div>'


def _figure(clip: Clip) -> str:
    return (
        f'<figure><video controls autoplay loop muted playsinline src="data:video/mp4;base64,{_base64(clip.path)}">'
        f"</video><figcaption>{escape(clip.caption)}</figcaption></figure>"
    )


def _shipped(showings: Sequence[Showing]) -> str:
    cards = "".join(
        f'<div class="card with"><h3>{escape(each.task)}: {each.right} of {each.episodes} right</h3>'
        f"<p>{escape(each.instruction)}</p>{_figure(each.clip)}</div>"
        for each in showings
    )
    return f"""<h2>The policy that comes with the package</h2>
<p>One policy for all three tasks, from two 128 x 128 cameras, trained on a GPU; it played these held-out episodes here, just
now. The clips are its first episode of each task, whatever came of it.</p>
<div class="three">{cards}</div>
"""


def _curve(contenders: Sequence[Contender], name: str, title: str) -> str:
    lines = {
        contender.name: [(line["step"], line[name]) for line in contender.metrics if name in line]
        for contender in contenders
    }
    return line_chart(lines, title=title, x_label="optimizer step", logarithmic=True)


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
