"""Robots of LeRobot, from a file with their configuration.

    {"type": "so101_follower", "port": "/dev/ttyACM0", "cameras": {"third": {"type": "opencv",
    ...}}}

The cameras must be named like the policy's views. The scalars of the robot's observation, in its
own order, are proprioception; the scalars of its action, in its own order, are the policy's action.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from chameleon_policy.robot.limits import Limits
from chameleon_policy.robot.robot import Array, RobotObservation


class LeRobotRobot:
    """A robot of LeRobot, whose episodes end after `--seconds`."""

    period = None
    over = False

    def __init__(self, robot: Any, instruction: str) -> None:
        self._robot, self.instruction = robot, instruction
        self.name = str(robot.name)
        features = robot.observation_features
        self.state_names = tuple(
            name for name, kind in features.items() if not isinstance(kind, tuple)
        )
        self.cameras = {
            name: tuple(kind) for name, kind in features.items() if isinstance(kind, tuple)
        }
        self.action_names = tuple(robot.action_features)
        self._shows_positions = set(self.action_names) <= set(self.state_names)
        self._held: Array | None = None
        robot.connect()

    @classmethod
    def from_file(cls, path: Path, instruction: str) -> LeRobotRobot:
        """Return the robot of a JSON or YAML file.

        Robots of installed `lerobot_robot_*` packages are found as LeRobot finds them.
        """
        if not path.is_file():
            raise FileNotFoundError(
                f"there is no robot configuration {path}; give --robot lerobot:FILE.json"
            )
        try:
            import draccus
            import lerobot.cameras
            import lerobot.robots
            import yaml
            from lerobot.robots.config import RobotConfig
            from lerobot.robots.utils import make_robot_from_config
            from lerobot.utils.import_utils import register_third_party_plugins
        except ModuleNotFoundError as error:
            raise ImportError(
                f"a robot of LeRobot needs {error.name}: pip install 'lerobot>=0.4.4'"
            ) from error
        for family in (lerobot.robots, lerobot.cameras):
            _register(family)
        register_third_party_plugins()
        try:
            # JSON is YAML, too
            config = draccus.decode(RobotConfig, yaml.safe_load(path.read_text()))
        except (yaml.YAMLError, draccus.utils.ParsingError) as error:
            raise ValueError(f"{path} is no configuration of a LeRobot robot: {error}") from error
        return cls(make_robot_from_config(config), instruction)

    @property
    def limits(self) -> Limits:
        """No limits here; the robot's own configuration may have some (`max_relative_target`)."""
        return Limits.none(len(self.action_names))

    def begin(self, episode: int) -> None:
        """Begin an episode where the robot is."""
        self._held = None

    def observe(self) -> RobotObservation:
        """Return proprioception and images."""
        observation = self._robot.get_observation()
        if self._held is None and self._shows_positions:
            self._held = _vector(observation, self.action_names)
        images = {name: np.asarray(observation[name]) for name in self.cameras}
        return RobotObservation(
            proprioception=_vector(observation, self.state_names), images=images
        )

    def hold(self) -> Array:
        """Return the last action, or before the first one the positions at the beginning."""
        if self._held is None:
            raise ValueError(
                f"{self.name} has actions ({', '.join(self.action_names)}) that its observation "
                "does not show, so that it cannot hold its position before the first plan: use a "
                "robot whose positions are observed"
            )
        return self._held

    def send(self, action: Array) -> None:
        """Send an action to the motors."""
        self._held = action
        self._robot.send_action(dict(zip(self.action_names, map(float, action), strict=True)))

    def stop(self) -> None:
        """Hold the present position, or the last action if no position can be read."""
        try:
            if self._shows_positions:
                place = _vector(self._robot.get_observation(), self.action_names)
                if np.isfinite(place).all():
                    self._held = place
        finally:  # the arm must hold still even if a camera fails
            if self._held is not None and np.isfinite(self._held).all():
                self.send(self._held)

    def close(self) -> None:
        """Disconnect from motors and cameras."""
        self._robot.disconnect()


def _register(family: ModuleType) -> None:
    """Import the packages of a family, which registers their types, if their drivers are there."""
    for package in pkgutil.iter_modules(family.__path__, f"{family.__name__}."):
        if package.ispkg:
            with suppress(ImportError):
                importlib.import_module(package.name)


def _vector(values: Mapping[str, Any], names: Sequence[str]) -> Array:
    return np.array([float(values[name]) for name in names], np.float32)
