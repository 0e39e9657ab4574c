"""Recordings of Camo and their mirror images: what is on the left is on the right, and the answers with it.

Table, cameras and gripper are symmetric about the plane y = 0, so the mirror image of an episode is an episode, but for the
arm above the elbow, the light and which hand is the left one. Demonstrations count twice.
"""

from __future__ import annotations

import numpy as np

from chameleon_policy.camo.controller import ACTION_NAMES
from chameleon_policy.camo.told import CHOICES
from chameleon_policy.data.episodes import Episodes

# M R M with M = diag(1, -1, 1), and M p: these change their sign.
_SIGNS = np.array([-1.0 if name in ("y", "r21", "r12", "r32") else 1.0 for name in ACTION_NAMES], np.float32)


def mirrored_poses(rows: np.ndarray) -> np.ndarray:
    """Tool poses in the numbers of an action, (T, 10), in the mirror."""
    mirrored: np.ndarray = rows * _SIGNS
    return mirrored


class MirroredEpisodes(Episodes):
    """The episodes of a recording with pictures, and behind them all of their mirror images."""

    def __init__(self, recording: Episodes) -> None:
        if not recording.views or recording.object_slots or recording.state_size != len(ACTION_NAMES):
            raise ValueError(f"{recording.source}: only recordings of Camo with pictures have a mirror image")
        if not all(recording._decisions(index)[1] for index in range(len(recording))):
            raise ValueError(f"{recording.source} is no recording of Camo: what its numbers become in a mirror is not known")
        super().__init__(
            recording.source, recording.layout, lengths=recording.lengths * 2, instructions=recording.instructions * 2,
            fps=recording.fps,
        )  # fmt: skip
        self._recording = recording

    def _array(self, index: int, key: str) -> np.ndarray:
        real = self._recording._array(index % len(self._recording), key)
        if index < len(self._recording):
            return real
        if key in self.layout.view_keys.values():
            return np.ascontiguousarray(real[:, :, ::-1])
        return mirrored_poses(real)

    def _place(self, index: int, key: str) -> str:
        return self._recording._place(index % len(self._recording), key)

    def _decisions(self, index: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        steps, answers = self._recording._decisions(index % len(self._recording))
        return steps, answers if index < len(self._recording) else tuple(CHOICES - 1 - answer for answer in answers)
