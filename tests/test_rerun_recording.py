"""The theatre as a recording: Rerun reads it, and heat maps lie over the right patches."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from chameleon_policy.probes.theatre_episode import TokenLayout
from chameleon_policy.report.theatre.rerun_recording import heat_maps, save_recording
from theatre_episodes import make_episode

STEPS = 12


def rerun(*arguments: object) -> str:
    """Rerun's own command."""
    program = Path(sys.executable).with_name("rerun")
    done = subprocess.run(
        [program, "rrd", *map(str, arguments)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_rerun_reads_it(tmp_path: Path) -> None:
    episodes = [make_episode(STEPS, decisions=(4,)), make_episode(STEPS, seed=1, decisions=(4,))]
    file = tmp_path / "deep" / "theatre.rrd"
    save_recording(episodes, file)
    assert "1 file verified without error" in rerun("verify", file)
    shown = rerun("print", "-v", file)
    for episode in episodes:
        branch = f"/{episode.policy}/{episode.task}/{episode.seed}"
        for view in episode.frames:
            assert f"{branch}/{view}" in shown and f"{branch}/{view}/recall" in shown
        question = episode.beliefs[0].question.replace(" ", "-")
        assert all(
            f"{branch}/belief/{question}/{choice}" in shown for choice in episode.beliefs[0].choices
        )


def test_heat_lies_on_the_patch_that_recall_attends_to() -> None:
    """A view of 2 x 2 patches whose lower left one gets everything, with a margin of a tenth."""
    layout = TokenLayout({"third": (2, 2)}, ("body", "instruction"), margin=0.1)
    attention = np.zeros((STEPS, 1, 2, 6))
    attention[..., 2] = 1
    frames = {"third": np.zeros((STEPS, 100, 100, 3), np.uint8)}
    made = replace(
        make_episode(STEPS, decisions=(4,)), layout=layout, attention=attention, frames=frames
    )
    opacity = heat_maps(made, 0)["third"][..., 3]
    expected = np.zeros((100, 100), bool)
    expected[50:90, 10:50] = True
    np.testing.assert_array_equal(opacity > 0, expected)
