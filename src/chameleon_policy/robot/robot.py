"""The interface of a robot, and its observations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from chameleon_policy.data.resizing import resized

Array = npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True, eq=False)
class RobotObservation:
    """An observation of one tick, in the layout that the policy takes."""

    proprioception: Array
    images: Mapping[str, Array] = field(default_factory=dict)
    objects: Array | None = None

    def arrays(self, views: Mapping[str, tuple[int, int]]) -> dict[str, Any]:
        """Return the arguments for the client's `observe`, with pictures of the policy's sizes.

        Larger ones are scaled down, as training has done it.
        """
        arrays = {
            "proprioception": np.asarray(self.proprioception, np.float32),
            "images": {
                name: _of_size(image, views.get(name, image.shape[:2]))
                for name, image in self.images.items()
            },
        }
        if self.objects is not None:
            arrays["objects"] = np.asarray(self.objects, np.float32)
        return arrays


def _of_size(image: Array, size: tuple[int, int]) -> Array:
    return image if image.shape[:2] == tuple(size) else resized(image, size)


class Robot(Protocol):
    """A robot, real or simulated; every tick calls `observe` and then `send`."""

    @property
    def name(self) -> str:
        """Name in recordings."""

    @property
    def action_names(self) -> tuple[str, ...]:
        """Names of the dimensions of an action."""

    @property
    def state_names(self) -> tuple[str, ...]:
        """Names of the dimensions of proprioception."""

    @property
    def instruction(self) -> str:
        """The task in words."""

    @property
    def period(self) -> float | None:
        """Seconds of a simulation's own time in a tick; None: the clock's period."""

    def begin(self, episode: int) -> None:
        """Prepare an episode, before the clock runs."""

    def observe(self) -> RobotObservation:
        """Return the present observation."""

    def hold(self) -> Array:
        """Return the action that keeps the robot where it is."""

    def send(self, action: Array) -> None:
        """Carry out an action."""

    @property
    def over(self) -> bool:
        """Whether the episode has ended by itself."""

    def stop(self) -> None:
        """Stop moving at once."""

    def close(self) -> None:
        """Release the hardware."""
