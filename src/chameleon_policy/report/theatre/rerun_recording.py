"""Episodes of the theatre as a Rerun recording: images, heat maps and beliefs on timelines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import rerun as rr
from PIL import Image

from chameleon_policy.probes.theatre_episode import TheatreEpisode

APPLICATION = "chameleon-memory-theatre"


def check_recording(path: Path) -> None:
    """Raise ValueError if no recording can be written to this path."""
    if path.suffix != ".rrd":
        raise ValueError(f"--rerun must name an .rrd file, got {path}")
    if path.is_dir():
        raise ValueError(f"--rerun must name a file, and {path} is a folder")


def save_recording(episodes: Sequence[TheatreEpisode], path: Path) -> None:
    """Write the episodes to one file, each to a branch of its own.

    The timelines are in control steps and in seconds.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    stream = rr.RecordingStream(APPLICATION)
    stream.save(str(path))
    for episode in episodes:
        _log(stream, episode, f"{episode.policy}/{episode.task}/{episode.seed}")
    stream.flush()
    stream.disconnect()


def _log(stream: rr.RecordingStream, episode: TheatreEpisode, branch: str) -> None:
    title = f"{episode.policy}, {episode.task}, seed {episode.seed}"
    facts = f"{title}: {episode.answer}. {episode.outcome}."
    stream.log(branch, rr.TextDocument(facts), static=True)
    for step, phase in enumerate(episode.phases):
        stream.set_time("step", sequence=step)
        stream.set_time("time", duration=step / episode.hz)
        for view, frames in episode.frames.items():
            stream.log(f"{branch}/{view}", rr.Image(frames[step]).compress(jpeg_quality=85))
        for view, heat in heat_maps(episode, step).items():
            stream.log(f"{branch}/{view}/recall", rr.Image(heat))
        for belief in episode.beliefs:
            for choice, share in zip(belief.choices, belief.shares[step], strict=True):
                stream.log(
                    f"{branch}/belief/{belief.question.replace(' ', '-')}/{choice}",
                    rr.Scalars(float(share)),
                )
        stream.log(f"{branch}/tool", rr.Points3D(episode.positions[step : step + 1]))
        if step == 0 or phase != episode.phases[step - 1]:
            stream.log(f"{branch}/phase", rr.TextLog(phase))


def heat_maps(episode: TheatreEpisode, step: int) -> dict[str, np.ndarray]:
    """Return an RGBA image for each view: the more recall attends to a patch, the more red.

    Recall is that of the last layer, averaged over heads.
    """
    shares = episode.attention[step, -1].mean(0)
    maps, first = {}, 0
    for view, (rows, columns) in episode.layout.views.items():
        patches = shares[first : first + rows * columns].reshape(rows, columns)
        first += rows * columns
        height, width = episode.frames[view].shape[1:3]
        rim = round(episode.layout.margin * height)
        opacity = np.uint8(255 * patches / max(float(shares.max()), 1e-9) * 0.7)
        inner = np.asarray(
            Image.fromarray(opacity).resize(
                (width - 2 * rim, height - 2 * rim), Image.Resampling.NEAREST
            )
        )
        heat = np.zeros((height, width, 4), np.uint8)
        heat[..., 0] = 255
        heat[rim : height - rim, rim : width - rim, 3] = inner
        maps[view] = heat
    return maps
