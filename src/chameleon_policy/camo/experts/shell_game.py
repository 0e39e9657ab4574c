"""Shell game: grasp a cup near its top and lift it."""

from __future__ import annotations

from chameleon_policy.camo.experts.expert import CLOSED, Expert, Waypoint
from chameleon_policy.camo.objects import CUP_HEIGHT


class ShellGameExpert(Expert):
    """Expert that lifts the cup at the position z."""

    def plan(self, decision: int) -> list[Waypoint]:
        """Return the way above the cup, down, close, up."""
        cups = sorted(self.env.task.present, key=lambda name: self.env.world.position(name)[1])
        assert isinstance(self.choice, int)
        cup = cups[self.choice]
        way = self.grasp(cup, CUP_HEIGHT - 0.033, CUP_HEIGHT + 0.09)
        held = way[-1].pose
        return [
            *way,
            Waypoint(self.over(held.position, held.position[2] + 0.17, 0.015), CLOSED, noise=0.5),
        ]
