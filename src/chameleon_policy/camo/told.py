"""Can a policy act at all? Here it is told the answer of the next decision, beside its
proprioception.

What it then fails at is not its memory. For looking into a training; no benchmark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from chameleon_policy.camo.env import CamoEnv
from chameleon_policy.data import Episodes

CHOICES = 3
"""Plates, cups, shakers: every task has three."""
KEY = "answer"


def told(answers: Sequence[int], decisions: int) -> npt.NDArray[np.float32]:
    """The answer that is due after so many decisions have come: three numbers, a one at its
    place.
    """
    due: npt.NDArray[np.float32] = (np.arange(CHOICES) == answers[max(0, decisions - 1)]).astype(
        np.float32
    )
    return due


class ToldEnv(CamoEnv):
    """Shows three more numbers of proprioception."""

    def _make_observation_space(self) -> gym.spaces.Dict:
        spaces = super()._make_observation_space().spaces
        pose = spaces["proprioception"]
        assert isinstance(pose, gym.spaces.Box)
        low, high = (
            np.concatenate([end, np.full(CHOICES, rest, np.float32)])
            for end, rest in ((pose.low, 0), (pose.high, 1))
        )
        return gym.spaces.Dict({**spaces, "proprioception": gym.spaces.Box(low, high)})

    def _observation(self) -> dict[str, Any]:
        observation = super()._observation()
        answers = self.z if isinstance(self.z, tuple) else (self.z,)
        whole = np.concatenate([observation["proprioception"], told(answers, len(self.decisions))])
        return {**observation, "proprioception": whole}


class ToldEpisodes(Episodes):
    """A recording of Camo with three more numbers of state."""

    def __init__(self, recording: Episodes) -> None:
        if not all(recording.decisions(index)[1] for index in range(len(recording))):
            raise ValueError(
                f"{recording.source} is no recording of Camo: there are no answers to tell"
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
        """Return an array of an episode as it is stored, or the answers that are told."""
        if key != KEY:
            return self._recording.array(index, key)
        steps, answers = self.decisions(index)
        return np.stack(
            [
                told(answers, sum(step <= now for step in steps))
                for now in range(self.lengths[index])
            ]
        )

    def location(self, index: int, key: str) -> str:
        """Return the location of that array, for messages."""
        return str(self.source) if key == KEY else self._recording.location(index, key)

    def decisions(self, index: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the time steps of an episode's decisions, and their answers."""
        return self._recording.decisions(index)
