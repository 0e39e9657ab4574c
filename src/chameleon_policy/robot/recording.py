"""Episodes of the robot loop as a LeRobot dataset: images, proprioception and sent actions."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

from chameleon_policy.data import Schema, assemble, part_indices, write_part
from chameleon_policy.data.schema import INFO_PATH
from chameleon_policy.robot.loop import EpisodeReport
from chameleon_policy.robot.robot import Robot, RobotObservation

UNFINISHED = "unfinished"


class RobotRecording:
    """A growing dataset: `add` after every episode, `finish` at the end."""

    def __init__(self, out: Path, robot: Robot, rate: float) -> None:
        """Record at the clock's `rate`, or in a simulation's own time."""
        if (out / INFO_PATH).exists() or (
            out.exists() and (not out.is_dir() or any(out.iterdir()))
        ):
            raise FileExistsError(
                f"{out} is not empty; choose another --record, or empty it yourself"
            )
        self._out, self._parts, self._robot = out, out / UNFINISHED, robot
        self._rate = rate if robot.period is None else 1 / robot.period
        self._schema: Schema | None = None

    def add(self, episode: EpisodeReport) -> None:
        """Write an episode to disk, unless it was stopped before its first action."""
        length = len(episode.actions)
        if not length:
            return
        observations = episode.observations[:length]
        schema = self._schema = self._schema or self._schema_of(observations[0])
        vectors = {
            "observation.state": np.stack([each.proprioception for each in observations]).astype(
                np.float32
            ),
            "action": np.stack(episode.actions),
        }
        if observations[0].objects is not None:
            vectors["observation.environment_state"] = np.stack(
                [_flat_objects(each) for each in observations]
            )
        write_part(
            self._parts,
            len(part_indices(self._parts)),
            schema,
            frames={
                view: np.stack([each.images[view] for each in observations])
                for view in schema.views
            },
            vectors=vectors,
            instruction=self._robot.instruction,
        )

    def finish(self) -> int:
        """Assemble the dataset; return its number of episodes."""
        episodes = sorted(part_indices(self._parts))
        if self._schema is not None and episodes:
            assemble(self._parts, self._out, self._schema, episodes)
            shutil.rmtree(self._parts)
        return len(episodes)

    def _schema_of(self, observation: RobotObservation) -> Schema:
        vectors = {"observation.state": self._robot.state_names, "action": self._robot.action_names}
        if observation.objects is not None:
            vectors["observation.environment_state"] = tuple(
                f"object{i}" for i in range(np.size(observation.objects))
            )
        views = {
            view: (int(image.shape[0]), int(image.shape[1]))
            for view, image in observation.images.items()
        }
        return Schema(fps=self._rate, robot_type=self._robot.name, views=views, vectors=vectors)


def _flat_objects(observation: RobotObservation) -> np.ndarray:
    assert observation.objects is not None
    return np.ravel(observation.objects).astype(np.float32)
