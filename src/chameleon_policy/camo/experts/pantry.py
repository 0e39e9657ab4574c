"""Pantry: for each question grasp a cup near its top, lift it, put it back, and return."""

from __future__ import annotations

from chameleon_policy.camo.experts.expert import CLOSED, OPEN, RETURNING, Expert, Waypoint
from chameleon_policy.camo.geometry import Pose
from chameleon_policy.camo.objects import CUP_HEIGHT
from chameleon_policy.camo.robot import DECISION_POSE

ABOVE, LIFTED = CUP_HEIGHT + 0.09, 0.15


class PantryExpert(Expert):
    """Expert that lifts the cups of z one after another.

    It begins to put back the last one, too: nothing that it sees tells which question is the last.
    """

    def plan(self, decision: int) -> list[Waypoint]:
        """Return the way above the cup, down, close, up, turn, down, open, back."""
        assert isinstance(self.choice, tuple)
        cups = sorted(self.env.task.present, key=lambda name: self.env.world.position(name)[1])
        way = self.grasp(cups[self.choice[decision]], CUP_HEIGHT - 0.033, ABOVE)
        hold = way[-1].pose.position
        home = self.over(hold, hold[2] + 0.002, rotation=RETURNING)
        return [
            *way,
            Waypoint(self.over(hold, hold[2] + LIFTED, 0.01), CLOSED, noise=0.5, tolerance=0.02),
            Waypoint(
                self.over(hold, hold[2] + LIFTED, 0.004, RETURNING),
                CLOSED,
                noise=0.4,
                tolerance=0.010,
            ),
            Waypoint(home, CLOSED, speed=0.045, tolerance=0.007, noise=0.25),
            Waypoint(home, OPEN, stay=2, tolerance=0.02, noise=0.2),
            Waypoint(self.over(hold, ABOVE, 0.006, RETURNING), OPEN, noise=0.3, tolerance=0.03),
            Waypoint(
                Pose(DECISION_POSE.position, RETURNING), OPEN, speed=0.09, tolerance=0.02, noise=0.6
            ),
            Waypoint(DECISION_POSE, OPEN, tolerance=0.004, noise=0.6),
        ]
