"""The page of `chameleon report`: the memory theatre first, then scores, curves, clips, figures and
how it was made.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from typing import Any

from chameleon_policy.camo.contact_sheet import PHASE_COLOURS
from chameleon_policy.probes.theatre_episode import TheatreEpisode
from chameleon_policy.report.theatre.encoding import encode_episode
from chameleon_policy.report.theatre.run import RunReport
from chameleon_policy.report.theatre.sections import (
    clips_section,
    curves_section,
    figures_section,
    scores_section,
)

SCRIPTS = ("pictures.js", "attention.js", "timeline.js", "what_if.js", "theatre.js", "controls.js")
"""In the order in which they build on each other; on the page they are one module."""


def report_page(
    runs: Sequence[RunReport], episodes: Sequence[TheatreEpisode], facts: Sequence[str]
) -> str:
    """One page that opens from disk without network; sections without data are left out.

    Facts are plain text, in which words between backticks become code.
    """
    names = {run.name for run in runs} | {episode.policy for episode in episodes}
    title = f"What {names.pop()} remembers" if len(names) == 1 else "What policies remember"
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title><style>{_file("theatre.css")}{_phase_style()}</style></head><body>
<h1>{escape(title)}</h1>
<p>At every control step the policy writes what it sees into traces, and recalls from them what the next action needs.
Here are its episodes with what recall attended to and what probes read from its memory, and how it did overall.</p>
{_theatre(episodes)}{scores_section(runs)}{curves_section(runs)}{clips_section(runs)}{figures_section(runs)}{_facts(facts)}
</body></html>
"""


def _theatre(episodes: Sequence[TheatreEpisode]) -> str:
    if not episodes:
        return ""
    options = "".join(f"<option>{escape(_name(episode))}</option>" for episode in episodes)
    data = "\n".join(
        f'<script type="application/json" id="episode-{number}">{_json(encode_episode(episode))}</script>'
        for number, episode in enumerate(episodes)
    )
    scripts = "\n".join(map(_file, SCRIPTS))
    stage = _file("theatre.html").replace("{{episodes}}", options)
    return f'{stage}{data}\n<script type="module">\n{scripts}</script>\n'


def _name(episode: TheatreEpisode) -> str:
    return f"{episode.policy} · {episode.task} · seed {episode.seed} · {episode.outcome}"


def _facts(facts: Sequence[str]) -> str:
    if not facts:
        return ""
    shown = (re.sub("`([^`]+)`", r"<code>\1</code>", escape(fact)) for fact in facts)
    items = "".join(f"<li>{fact}</li>" for fact in shown)
    return f'<section id="facts"><h2>How it was made</h2><ul>{items}</ul></section>'


def _json(value: Any) -> str:
    # Inside a script element only these could end it or hide its end; in JSON they stand in strings
    # alone.
    return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":")).replace(
        "<", "\\u003c"
    )


def _phase_style() -> str:
    """Colours of the phases as elsewhere, each with the ink that reads better on it."""
    lines = []
    for phase, colour in PHASE_COLOURS.items():
        ink = (
            "#fff"
            if 1.05 / (_luminance(colour) + 0.05) >= (_luminance(colour) + 0.05) / 0.05
            else "#000"
        )
        lines.append(f"--phase-{phase}: rgb{colour}; --on-phase-{phase}: {ink};")
    return f":root {{ {' '.join(lines)} }}\n"


def _luminance(colour: tuple[int, int, int]) -> float:
    """Relative luminance as WCAG defines it."""
    linear = [
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4
        for c in (value / 255 for value in colour)
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _file(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
