"""What the robot did, as a LeRobot dataset: the pictures it saw, its proprioception, and the
actions that it was sent.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

from chameleon_policy.data import Schema, assemble, part_indices, write_part
from chameleon_policy.data.schema import INFO_PATH
from chameleon_policy.robot.loop import Played
from chameleon_policy.robot.robot import Robot, Sight

UNFINISHED = "unfinished"


class RobotRecording:
    """A dataset in the making: `add` after every episode, `finish` at the end."""

    def __init__(self, out: Path, robot: Robot, rate: float) -> None:
        """`rate` is the clock's; a simulation with a time of its own is recorded in that."""
        if (out / INFO_PATH).exists() or (
            out.exists() and (not out.is_dir() or any(out.iterdir()))
        ):
            raise FileExistsError(
                f"{out} holds something already; choose another --record, or empty it yourself"
            )
        self._out, self._parts, self._robot = out, out / UNFINISHED, robot
        self._rate = rate if robot.period is None else 1 / robot.period
        self._schema: Schema | None = None

    def add(self, episode: Played) -> None:
        """Write an episode to disk; one that was stopped before its first action is left out."""
        length = len(episode.actions)
        if not length:
            return
        seen = episode.sights[:length]
        schema = self._schema = self._schema or self._schema_of(seen[0])
        vectors = {
            "observation.state": np.stack([each.proprioception for each in seen]).astype(
                np.float32
            ),
            "action": np.stack(episode.actions),
        }
        if seen[0].objects is not None:
            vectors["observation.environment_state"] = np.stack([_flat(each) for each in seen])
        write_part(
            self._parts,
            len(part_indices(self._parts)),
            schema,
            frames={view: np.stack([each.images[view] for each in seen]) for view in schema.views},
            vectors=vectors,
            instruction=self._robot.instruction,
        )

    def finish(self) -> int:
        """Put the episodes together; returns how many there are."""
        episodes = sorted(part_indices(self._parts))
        if self._schema is not None and episodes:
            assemble(self._parts, self._out, self._schema, episodes)
            shutil.rmtree(self._parts)
        return len(episodes)

    def _schema_of(self, sight: Sight) -> Schema:
        vectors = {"observation.state": self._robot.state_names, "action": self._robot.action_names}
        if sight.objects is not None:
            vectors["observation.environment_state"] = tuple(
                f"object{i}" for i in range(np.size(sight.objects))
            )
        views = {
            view: (int(image.shape[0]), int(image.shape[1])) for view, image in sight.images.items()
        }
        return Schema(fps=self._rate, robot_type=self._robot.name, views=views, vectors=vectors)


def _flat(sight: Sight) -> np.ndarray:
    assert sight.objects is not None
    return np.ravel(sight.objects).astype(np.float32)
