"""What the loop needs of a robot, and what a robot perceives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True, eq=False)
class Sight:
    """What a robot perceives at one tick, in the layout that the policy takes."""

    proprioception: Array
    images: Mapping[str, Array] = field(default_factory=dict)
    objects: Array | None = None
    decision: bool = False
    """Whether the robot knows that a decision is due now: what was planned before is dropped."""

    def arrays(self) -> dict[str, Any]:
        """As the client sends it."""
        seen = {
            "proprioception": np.asarray(self.proprioception, np.float32),
            "images": dict(self.images),
        }
        return (
            seen
            if self.objects is None
            else {**seen, "objects": np.asarray(self.objects, np.float32)}
        )


class Robot(Protocol):
    """A robot, real or simulated. The loop calls `observe` and `send` once in every tick, in this
    order.
    """

    @property
    def name(self) -> str:
        """What its recordings call it."""

    @property
    def action_names(self) -> tuple[str, ...]:
        """What the numbers of an action are."""

    @property
    def state_names(self) -> tuple[str, ...]:
        """What the numbers of proprioception are."""

    @property
    def instruction(self) -> str:
        """The task in words."""

    @property
    def period(self) -> float | None:
        """Seconds of its own time in a tick, where that is not the clock's: a simulation may run
        faster.
        """

    def begin(self, episode: int) -> None:
        """Get ready for an episode; the clock does not run yet."""

    def observe(self) -> Sight:
        """What is perceived now."""

    def hold(self) -> Array:
        """The action that keeps the robot where it is."""

    def send(self, action: Array) -> None:
        """Move towards an action."""

    @property
    def over(self) -> bool:
        """Whether the episode has ended of itself."""

    def stop(self) -> None:
        """Stand still at once, whatever was going on."""

    def close(self) -> None:
        """Let go of the hardware."""
