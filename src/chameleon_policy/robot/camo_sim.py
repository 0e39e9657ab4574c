"""A task of Camo as a simulated robot: `send` takes a control step, `observe` shows the result."""

from __future__ import annotations

import math

from chameleon_policy.camo.controller import ACTION_NAMES, WORKSPACE_HIGH, WORKSPACE_LOW
from chameleon_policy.camo.settings import CamoSettings
from chameleon_policy.camo.world import CONTROL_HZ
from chameleon_policy.evaluate.pool import Tick, environment_tick
from chameleon_policy.robot.limits import Limits
from chameleon_policy.robot.robot import Array, RobotObservation
from chameleon_policy.seeds import refuse_training_seeds
from chameleon_policy.suite import EpisodeResult

LARGEST_SPEED = 1.0
"""Largest speed in each direction in metres per second; experts stay below 0.7."""


class CamoSim:
    """A simulated robot that plays episodes of evaluation seeds, one after another."""

    name = "ur5e"
    action_names = state_names = ACTION_NAMES
    period = 1 / CONTROL_HZ

    def __init__(self, settings: CamoSettings, first_seed: int) -> None:
        refuse_training_seeds([first_seed])
        self.settings, self._env, self._first_seed = settings, settings.make_env(), first_seed
        self._last_tick: Tick | None = None

    @property
    def limits(self) -> Limits:
        """Limits of position and speed; rotation and gripper are limited by the environment."""
        free = (math.inf,) * (len(ACTION_NAMES) - 3)
        return Limits(
            low=(*WORKSPACE_LOW.tolist(), *(-bound for bound in free)),
            high=(*WORKSPACE_HIGH.tolist(), *free),
            per_second=(*(LARGEST_SPEED,) * 3, *free),
        )

    @property
    def instruction(self) -> str:
        """The instruction of the task's demonstrations."""
        return self._env.task.instruction

    @property
    def played(self) -> EpisodeResult | None:
        """The result of the episode, None before its end."""
        return self._tick.played

    def begin(self, episode: int) -> None:
        """Begin the episode with this index; seeds count up from the first one."""
        seed = self._first_seed + episode
        refuse_training_seeds([seed])
        self._last_tick = environment_tick(self._env, (seed, None))

    def observe(self) -> RobotObservation:
        """Return proprioception, and images or object slots."""
        return RobotObservation(**self._tick.observation)

    def hold(self) -> Array:
        """Return proprioception: it has the layout of an action."""
        action: Array = self._tick.observation["proprioception"]
        return action

    def send(self, action: Array) -> None:
        """Take one control step."""
        self._last_tick = environment_tick(self._env, action)

    @property
    def over(self) -> bool:
        """Whether the episode succeeded, failed or timed out."""
        return self._tick.played is not None

    def stop(self) -> None:
        """Do nothing: the simulation only moves in `send`."""

    def close(self) -> None:
        """Free the renderers."""
        self._env.close()

    @property
    def _tick(self) -> Tick:
        if self._last_tick is None:
            raise ValueError("no episode has begun; call begin(0) first")
        return self._last_tick
