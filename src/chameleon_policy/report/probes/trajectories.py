"""Trajectories of the working state in three dimensions (UMAP), coloured by the answer, as an SVG
file that stands alone.
"""

from __future__ import annotations

import math
from html import escape
from pathlib import Path

import numpy as np

from chameleon_policy.report.interval_chart import COLOURS, INK, text

NEIGHBOURS = 30
BEFORE = 24
"""Control steps up to the first decision that are drawn: the last of the evidence, and the wait."""
SIZE, TOP = 300, 66
VIEWS = (25.0, 115.0)
"""Degrees around the vertical axis: two looks at the same cloud."""


def embed(file: Path) -> tuple[np.ndarray, np.ndarray]:
    """h before the first decision of every episode in three dimensions, (episodes, steps, 3), and
    the answers.
    """
    try:
        from umap import UMAP
    except ModuleNotFoundError as error:
        raise ImportError(
            "trajectories need umap-learn: pip install 'chameleon-policy[probes]'"
        ) from error

    with np.load(file) as saved:
        working, lengths, decisions, answers = (
            saved[name] for name in ("working", "lengths", "decisions", "answers")
        )
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    inside = decisions >= BEFORE
    rows = (starts + decisions)[inside, None] + np.arange(-BEFORE, 0)
    points = working[rows].astype(np.float32)
    flat = points.reshape(-1, points.shape[-1])
    flat = (flat - flat.mean(0)) / flat.std(0).clip(min=1e-6)
    mapped = UMAP(
        n_components=3, n_neighbors=min(NEIGHBOURS, len(flat) - 1), random_state=0, n_jobs=1
    ).fit_transform(flat)
    return mapped.reshape(*points.shape[:2], 3), answers[inside, 0]


def trajectories(file: Path, title: str) -> str:
    """Two looks at the trajectories; they end with a dot, one step before the decision."""
    points, answers = embed(file)
    centred = points - (points.reshape(-1, 3).min(0) + points.reshape(-1, 3).max(0)) / 2
    names = ("left", "middle", "right")
    parts = [text(12, 20, title, "start", size=15, bold=True)]
    right = 12.0
    for answer in sorted(set(answers.tolist())):
        parts.append(
            f'<circle cx="{right + 5:.0f}" cy="40" r="5" fill="{COLOURS[answer % len(COLOURS)]}"/>'
        )
        parts.append(text(right + 15, 44, names[answer], "start"))
        right += 34 + 7 * len(names[answer])
    for number, degrees in enumerate(VIEWS):
        flat = _look(centred, math.radians(degrees))
        flat = flat / np.abs(flat).max() * 0.46 * SIZE
        across, down = 10 + (number + 0.5) * SIZE + flat[..., 0], TOP + SIZE / 2 - flat[..., 1]
        for x, y, answer in zip(across, down, answers.tolist(), strict=True):
            path = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))
            colour = COLOURS[answer % len(COLOURS)]
            parts.append(
                f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1" opacity="0.45"/>'
            )
            parts.append(f'<circle cx="{x[-1]:.1f}" cy="{y[-1]:.1f}" r="2.6" fill="{colour}"/>')
    width, height = 20 + len(VIEWS) * SIZE, TOP + SIZE + 26
    parts.append(
        text(
            12,
            height - 8,
            f"{len(points)} episodes, the last {BEFORE} steps before the first decision",
            "start",
        )
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="system-ui, sans-serif" role="img" aria-label="{escape(title)}" color="{INK}">{"".join(parts)}</svg>\n'
    )


def _look(points: np.ndarray, angle: float, tilt: float = math.radians(20)) -> np.ndarray:
    """Turned around the vertical axis and tilted, then seen from the front."""
    x, y, z = np.moveaxis(points, -1, 0)
    sideways = x * math.cos(angle) - y * math.sin(angle)
    depth = x * math.sin(angle) + y * math.cos(angle)
    return np.stack([sideways, z * math.cos(tilt) - depth * math.sin(tilt)], axis=-1)
