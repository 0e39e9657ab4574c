"""Episodes of the robot loop as a LeRobot dataset: images, proprioception and sent actions."""

from __future__ import annotations

import json
import shutil
from contextlib import ExitStack, suppress
from pathlib import Path

import numpy as np

from chameleon_policy.data import Schema, assemble, part_indices, write_part
from chameleon_policy.data.recorded_episodes import part_folder
from chameleon_policy.data.schema import INFO_PATH
from chameleon_policy.locking import only_process
from chameleon_policy.robot.loop import EpisodeReport
from chameleon_policy.robot.robot import Robot, RobotObservation

UNFINISHED = "unfinished"
OURS = {UNFINISHED, "data", "meta", "videos"}
"""What a recording that was broken off may hold."""


class RobotRecording:
    """A growing dataset: `add` after every episode, `finish` at the end.

    Every episode is on disk when `add` returns. A recording whose process was killed goes on in the
    same folder.
    """

    def __init__(self, out: Path, robot: Robot, rate: float) -> None:
        """Record at the clock's `rate`, or in a simulation's own time."""
        if (out / INFO_PATH).exists():
            raise FileExistsError(f"{out} holds a finished recording; choose another --record")
        if out.exists() and (not out.is_dir() or {entry.name for entry in out.iterdir()} - OURS):
            raise FileExistsError(
                f"{out} is not empty and holds no unfinished recording; choose another --record"
            )
        self._out, self._parts, self._robot = out, out / UNFINISHED, robot
        self._rate = rate if robot.period is None else 1 / robot.period
        self._schema: Schema | None = None
        self._lock = ExitStack()
        self._parts.mkdir(parents=True, exist_ok=True)
        self._lock.enter_context(
            only_process(
                self._parts / "lock",
                f"another process is recording into {out}; wait for it, or choose another --record",
            )
        )
        self.found = len(part_indices(self._parts))
        """Episodes of an earlier process that was killed."""
        if self.found:
            self._schema = self._schema_of_found()

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
        self.release()
        shutil.rmtree(self._parts)
        if not episodes:
            with suppress(OSError):  # it was there before, with something in it
                self._out.rmdir()
        return len(episodes)

    def release(self) -> None:
        """Let another process record into this folder."""
        self._lock.close()

    def _schema_of_found(self) -> Schema:
        """Return the schema of the episodes that were found; they must be of this robot."""
        first = part_folder(self._parts, min(part_indices(self._parts)))
        then = json.loads((first / "part.json").read_text(encoding="utf-8"))["schema"]
        robot, vectors = self._robot, then["vectors"]
        for name, before, now in (
            ("rate", then["fps"], float(self._rate)),
            ("robot", then["robot_type"], robot.name),
            ("proprioception", vectors["observation.state"], list(robot.state_names)),
            ("action", vectors["action"], list(robot.action_names)),
        ):
            if before != now:
                self.release()
                raise ValueError(
                    f"{self._out} holds {self.found} episodes of another {name} ({before}, now "
                    f"{now}); choose another --record"
                )
        return Schema(
            fps=then["fps"],
            robot_type=then["robot_type"],
            views={view: (size[0], size[1]) for view, size in then["views"].items()},
            vectors={name: tuple(names) for name, names in vectors.items()},
        )

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
