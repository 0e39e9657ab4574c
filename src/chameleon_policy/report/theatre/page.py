"""The page of `chameleon report`: the memory theatre, scores, learning curves, clips, figures."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup
from matplotlib.figure import Figure

from chameleon_policy.camo import Summary
from chameleon_policy.camo.contact_sheet import PHASE_COLOURS
from chameleon_policy.probes.theatre_episode import TheatreEpisode
from chameleon_policy.report.charts import inline_svg, learning_curves
from chameleon_policy.report.pages import Clip, render
from chameleon_policy.report.theatre.encoding import encode_episode

SCRIPTS = ("pictures.js", "attention.js", "timeline.js", "what_if.js", "theatre.js", "controls.js")
"""In the order in which they build on each other; on the page they are one module."""


@dataclass(frozen=True, eq=False)
class RunReport:
    """What the page shows of one run, next to its episodes in the theatre."""

    name: str
    method: str
    preset: str
    parameters: int
    scores: Mapping[str, Summary]
    """By task."""
    metrics: Sequence[dict[str, Any]] = ()
    """Lines of metrics.jsonl; empty for a policy without them."""
    clips: Sequence[Clip] = ()
    """Successes and failures."""
    figures: Mapping[str, Figure] = field(default_factory=dict)
    """Caption -> chart of a probe."""


def report_page(
    runs: Sequence[RunReport], episodes: Sequence[TheatreEpisode], facts: Sequence[str]
) -> str:
    """Return a page that opens from disk without a network; sections without data are left out.

    Facts are plain text, in which words between backticks become code.
    """
    names = {run.name for run in runs} | {episode.policy for episode in episodes}
    title = f"What {names.pop()} remembers" if len(names) == 1 else "What policies remember"
    return render(
        "report.html",
        title=title,
        runs=runs,
        episodes=[
            {"name": _name(episode), "json": _json(encode_episode(episode))} for episode in episodes
        ],
        scripts=[f"theatre/{script}" for script in SCRIPTS],
        phases=_phase_colours(),
        curves=[
            inline_svg(chart)
            for chart in learning_curves({run.name: run.metrics for run in runs}, legend=False)
        ],
        figures={
            run.name: {caption: inline_svg(figure) for caption, figure in run.figures.items()}
            for run in runs
            if run.figures
        },
        facts=facts,
    )


def _name(episode: TheatreEpisode) -> str:
    return f"{episode.policy} · {episode.task} · seed {episode.seed} · {episode.outcome}"


def _json(value: Any) -> Markup:
    # Only "<" could end the script element or hide its end; in JSON it occurs in strings alone.
    text = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c"))  # noqa: S704


def _phase_colours() -> dict[str, tuple[str, str]]:
    """Return for each phase its colour and the ink, black or white, with more contrast on it."""
    colours = {}
    for phase, colour in PHASE_COLOURS.items():
        light = _luminance(colour) + 0.05
        colours[phase] = (f"rgb{colour}", "#fff" if 1.05 / light >= light / 0.05 else "#000")
    return colours


def _luminance(colour: tuple[int, int, int]) -> float:
    """Return the relative luminance as WCAG defines it."""
    linear = [
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4
        for c in (value / 255 for value in colour)
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
