"""Clean plate: take the sponge and wipe one plate back and forth."""

from __future__ import annotations

import numpy as np

from chameleon_policy.camo.experts.expert import CLOSED, Expert, Waypoint
from chameleon_policy.camo.geometry import Pose
from chameleon_policy.camo.objects import PLATE_SURFACE, SPONGE

GRIP = 0.037
"""Approximate height of the grip on the sponge: in its foam."""
PRESS = 0.014


class CleanPlateExpert(Expert):
    """Expert that wipes the plate with the index z.

    The strokes advance across it: the position of the sponge shows the progress.
    """

    def plan(self, decision: int) -> list[Waypoint]:
        """Return the way to the sponge, over the plate, down, and three strokes."""
        assert isinstance(self.choice, int)
        # The height of the grip varies: the sponge must reach the plate, not the hand.
        grip = GRIP + self._rng.uniform(-0.008, 0.004)
        way = self.grasp("sponge", grip, SPONGE[2] + 0.09)
        sponge, plate = (
            way[-1].pose.position,
            self.env.world.position(self.env.task.candidates[self.choice]),
        )
        working = grip + PLATE_SURFACE - PRESS
        # of the sponge in the hand
        offset = sponge - (*self.env.world.position("sponge")[:2], 0)
        # The first stroke goes through the middle: even a centimetre off its path it covers most of
        # the plate. Always from the same side: two mirrored ways would be two modes to learn.
        strokes = [(0.0, -0.026), (0.0, 0.026), (-0.014, 0.026), (-0.014, -0.026)]
        path = [
            np.array([plate[0] + x + offset[0], plate[1] + y + offset[1], working])
            for x, y in strokes
        ]
        return [
            *way,
            Waypoint(self.over(sponge, 0.13, 0.02), CLOSED, noise=0.5, tolerance=0.03),
            Waypoint(self.over(path[0], 0.11, 0.02), CLOSED, speed=0.075, tolerance=0.025),
            Waypoint(
                Pose(path[0] + (0, 0, 0.012), self.posture),
                CLOSED,
                speed=0.045,
                tolerance=0.010,
                noise=0.4,
            ),
            *(
                Waypoint(
                    Pose(point, self.posture), CLOSED, speed=0.028, tolerance=0.007, noise=0.35
                )
                for point in path
            ),
        ]
