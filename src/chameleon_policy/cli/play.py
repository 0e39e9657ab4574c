"""Watch an expert play one episode of a Camo task."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from chameleon_policy.camo import CamoEnv
from chameleon_policy.camo.play import (
    check_output,
    parse_answer,
    save_clip,
    save_sheet,
    watch_episode,
)
from chameleon_policy.cli.options import DEFAULT_DIALS, TASK, UNSET, FlatDials
from chameleon_policy.console import Terminal


def main(
    task: Annotated[tyro.conf.Positional[str], TASK],
    out: Path = Path("clip.mp4"),
    z: Annotated[str | None, UNSET] = None,
    seed: int = 0,
    size: int = 320,
    dials: FlatDials = DEFAULT_DIALS,
) -> None:
    """Watch an expert play one episode: a video of both cameras, and a contact sheet next to it.

    Args:
        task: clean-plate, shell-game, seasonings or pantry.
        out: File for the video; the contact sheet gets the same name with .png.
        z: The answer, like 1, or 0,2,2 for seasonings (default: the seed decides).
        seed: Seed of the episode.
        size: Height and width of each view.
        dials: Appearance and difficulty.
    """
    if seed < 0:
        raise ValueError(f"--seed must be at least 0, got {seed}")
    settings = dials.settings
    env = CamoEnv(task, observation="state", **settings.pop("difficulty", {}), **settings)
    answer = parse_answer(env.task, z)
    sheet = check_output(out, size)
    with Terminal(stderr=True).status(f"playing {task} ...") as status:

        def show(step: int) -> None:
            status.update(f"playing {task}: step {step}")

        moments, result = watch_episode(env, seed, answer, size, progress=show)
        save_clip(moments, out)
        save_sheet(moments, env, sheet)
    outcome = f"z = {env.z}, chosen: {result.choice}, {result.reason}"
    print(f"{outcome}. Video: {out}, contact sheet: {sheet}")
