"""Seasonings: three times take a shaker, shake it across the bowl, put it back, and return."""

from __future__ import annotations

import numpy as np

from chameleon_policy.camo.experts.expert import CLOSED, OPEN, RETURNING, Expert, Waypoint
from chameleon_policy.camo.geometry import Pose, rotation_about
from chameleon_policy.camo.robot import DECISION_POSE, DOWNWARD

GRIP = 0.058
TILTED = rotation_about((0, 1, 0), -0.4) @ DOWNWARD
OVER_BOWL, DIP = 0.20, 0.07


class SeasoningsExpert(Expert):
    """Expert that adds the seasonings of z.

    The shakes are a W across the bowl: the position of the hand shows the progress and the
    direction.
    """

    def plan(self, decision: int) -> list[Waypoint]:
        """Return the way to take a shaker, shake it twice, put it back and return."""
        assert isinstance(self.choice, tuple)
        shaker = self.env.task.candidates[self.choice[decision]]
        way = self.grasp(shaker, GRIP, 0.20)
        hold, bowl = way[-1].pose.position, self.env.world.position("bowl")
        high = OVER_BOWL + self._rng.uniform(-0.005, 0.01)
        shakes = []
        for number, across in enumerate((-0.051, -0.017, 0.017, 0.051)):
            point = np.array(
                [bowl[0] + 0.012, bowl[1] + across, high - (DIP if number % 2 else 0.0)]
            )
            shakes.append(
                Waypoint(
                    Pose(point + self.wobble(0.004), TILTED), CLOSED, tolerance=0.016, noise=0.5
                )
            )
        home = self.over(hold, hold[2] + 0.002, rotation=RETURNING)
        return [
            *way,
            Waypoint(self.over(hold, 0.19, 0.01), CLOSED, noise=0.4, tolerance=0.025),
            *shakes,
            Waypoint(
                self.over(bowl, 0.20, 0.01, RETURNING),
                CLOSED,
                speed=0.075,
                tolerance=0.04,
                noise=0.5,
            ),
            Waypoint(
                self.over(hold, 0.15, 0.004, RETURNING),
                CLOSED,
                speed=0.075,
                tolerance=0.010,
                noise=0.4,
            ),
            Waypoint(home, CLOSED, speed=0.045, tolerance=0.007, noise=0.25),
            Waypoint(home, OPEN, stay=2, tolerance=0.02, noise=0.2),
            Waypoint(
                self.over(hold, 0.19, 0.006, RETURNING),
                OPEN,
                speed=0.075,
                noise=0.3,
                tolerance=0.03,
            ),
            Waypoint(
                Pose(DECISION_POSE.position, RETURNING), OPEN, speed=0.09, tolerance=0.02, noise=0.6
            ),
            Waypoint(DECISION_POSE, OPEN, tolerance=0.004, noise=0.6),
        ]
