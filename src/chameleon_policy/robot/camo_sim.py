"""A task of Camo as a robot: `send` takes one control step of the simulation, `observe` shows what
came of it.
"""

from __future__ import annotations

import math

from chameleon_policy.camo.controller import ACTION_NAMES, WORKSPACE_HIGH, WORKSPACE_LOW
from chameleon_policy.camo.settings import CamoSettings
from chameleon_policy.camo.world import CONTROL_HZ
from chameleon_policy.evaluate.pool import Tick, environment_tick
from chameleon_policy.robot.limits import Limits
from chameleon_policy.robot.robot import Array, Sight
from chameleon_policy.seeds import refuse_training_seeds
from chameleon_policy.suite import EpisodeResult

LARGEST_SPEED = 1.0
"""Metres per second in each direction; experts stay below 0.7."""


class CamoSim:
    """Episodes of evaluation seeds, one after another."""

    name = "ur5e"
    action_names = state_names = ACTION_NAMES
    period = 1 / CONTROL_HZ

    def __init__(self, settings: CamoSettings, first_seed: int) -> None:
        refuse_training_seeds([first_seed])
        self.settings, self._env, self._first_seed = settings, settings.make_env(), first_seed
        self._now: Tick | None = None

    @property
    def limits(self) -> Limits:
        """Camo's workspace and a speed; turns and the gripper are as free as the environment leaves
        them.
        """
        free = (math.inf,) * (len(ACTION_NAMES) - 3)
        return Limits(
            low=(*WORKSPACE_LOW.tolist(), *(-each for each in free)),
            high=(*WORKSPACE_HIGH.tolist(), *free),
            per_second=(*(LARGEST_SPEED,) * 3, *free),
        )

    @property
    def instruction(self) -> str:
        """As its demonstrations have it."""
        return self._env.task.instruction

    @property
    def played(self) -> EpisodeResult | None:
        """The result, when the episode is over."""
        return self._tick.played

    def begin(self, episode: int) -> None:
        """Seeds count up from the first one."""
        seed = self._first_seed + episode
        refuse_training_seeds([seed])
        self._now = environment_tick(self._env, (seed, None))

    def observe(self) -> Sight:
        """Pictures or object slots, and proprioception."""
        return Sight(**self._tick.observation, decision=self._tick.decision)

    def hold(self) -> Array:
        """Proprioception has the numbers of an action."""
        action: Array = self._tick.observation["proprioception"]
        return action

    def send(self, action: Array) -> None:
        """One control step."""
        self._now = environment_tick(self._env, action)

    @property
    def over(self) -> bool:
        """Whether the task is done, failed or timed out."""
        return self._tick.played is not None

    def stop(self) -> None:
        """Time stands still in a simulation that is not stepped."""

    def close(self) -> None:
        """Free the renderers."""
        self._env.close()

    @property
    def _tick(self) -> Tick:
        if self._now is None:
            raise ValueError("no episode has begun; call begin(0) first")
        return self._now
