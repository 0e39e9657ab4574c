"""Variants of recordings of Camo, for training: with the answer shown, or mirrored.

Table, cameras and gripper are symmetric about the plane y = 0, so the mirror image of an episode is
an episode, except for the arm above the elbow, the light, and which hand is the left one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from chameleon_policy.camo.controller import ACTION_NAMES
from chameleon_policy.data import Episodes

CHOICES = 3
"""Candidates that can be told apart: plates, cups or shakers, with each task's default dials."""
KEY = "answer"

# M R M with M = diag(1, -1, 1), and M p: these change their sign.
SIGNS = tuple(-1.0 if name in ("y", "r21", "r12", "r32") else 1.0 for name in ACTION_NAMES)


def answer_due(answers: Sequence[int], decisions: int) -> npt.NDArray[np.float32]:
    """Return the answer due after this many decisions, one-hot (CHOICES,)."""
    due: npt.NDArray[np.float32] = (np.arange(CHOICES) == answers[max(0, decisions - 1)]).astype(
        np.float32
    )
    return due


class AnswerShownEpisodes(Episodes):
    """Recording whose state ends with the answer of the next decision."""

    def __init__(self, recording: Episodes) -> None:
        if not all(recording.decisions(index)[1] for index in range(len(recording))):
            raise ValueError(
                f"{recording.source} is no recording of Camo: there are no answers to tell"
            )
        last = max(max(recording.decisions(index)[1]) for index in range(len(recording)))
        if last >= CHOICES:
            raise ValueError(
                f"{recording.source} has answers up to {last}, and only 0 to {CHOICES - 1} can be "
                f"told: leave out --tell-answer, or record with {CHOICES} candidates"
            )
        layout = replace(recording.layout, state={**recording.layout.state, KEY: CHOICES})
        super().__init__(
            recording.source,
            layout,
            lengths=recording.lengths,
            instructions=recording.instructions,
            fps=recording.fps,
        )
        self._recording = recording

    def array(self, index: int, key: str) -> np.ndarray:
        """Return an array of an episode as it is stored, or the answers (T, CHOICES)."""
        if key != KEY:
            return self._recording.array(index, key)
        steps, answers = self.decisions(index)
        return np.stack(
            [
                answer_due(answers, sum(step <= now for step in steps))
                for now in range(self.lengths[index])
            ]
        )

    def frames(self, index: int, key: str) -> Iterable[np.ndarray]:
        """Return the pictures of an episode one after the other, as they are stored."""
        return self._recording.frames(index, key)

    def location(self, index: int, key: str) -> str:
        """Return the location of that array, for messages."""
        return str(self.source) if key == KEY else self._recording.location(index, key)

    def decisions(self, index: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the time steps of an episode's decisions, and their answers."""
        return self._recording.decisions(index)


def check_mirror(recording: Episodes) -> None:
    """Raise a ValueError if the mirror image of a recording is not known."""
    instead = "give --no-mirror"
    if not recording.views or recording.object_slots or recording.state_size != len(ACTION_NAMES):
        raise ValueError(
            f"{recording.source}: only recordings of Camo with pictures have a mirror image; "
            f"{instead}"
        )
    if not all(recording.decisions(index)[1] for index in range(len(recording))):
        raise ValueError(
            f"{recording.source} is no recording of Camo: what its numbers become in a mirror is "
            f"not known; {instead}"
        )
