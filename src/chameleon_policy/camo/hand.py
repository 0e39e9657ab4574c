"""The human: hands that carry objects around, and the choreography of their movements.

A hand is a mocap body without contacts. Its origin is the grip point between thumb and fingers; the
forearm extends from there in the direction of +x, towards the person opposite the robot. Before the
decision, an object in a hand moves with it exactly, so that objects end at the poses of the
choreography, to the last bit.
"""

from __future__ import annotations

from dataclasses import dataclass

import mujoco
import numpy as np

from chameleon_policy.camo.geometry import Array, Pose, minimum_jerk, rotation_about
from chameleon_policy.camo.robot import CAPSULE, Colour, Triple

SKIN, SLEEVE, CUFF = (0.87, 0.66, 0.54, 1), (0.24, 0.33, 0.47, 1), (0.92, 0.92, 0.90, 1)
ELLIPSOID = mujoco.mjtGeom.mjGEOM_ELLIPSOID

AWAY = np.array([1.45, 0.0, 0.35])
"""Resting position of hands: behind the camera."""
HAND_GROUP = 1
"""Group of hands' geoms; cameras save time by skipping it while no hand is near."""
VISIBLE_X = 1.0
"""Cameras do not see a hand whose grip point has a larger x."""

UPRIGHT_GRIP = np.eye(3)
"""Thumb and fingers around a standing object."""
LEFT_GRIP, RIGHT_GRIP = rotation_about((0, 0, 1), -1.05), rotation_about((0, 0, 1), 1.05)
"""The same with the forearm to the left or the right of the third view, not in front of the
object.
"""
FLAT_GRIP = rotation_about((1, 0, 0), -np.pi / 2)
"""Thumb above, fingers below the rim of a flat object."""


def add_hand(spec: mujoco.MjSpec, name: str, *, mirrored: bool = False) -> None:
    """Add a right hand with forearm, sleeve and cuff in a relaxed grip, or its mirror image."""
    side = -1.0 if mirrored else 1.0
    body = spec.worldbody.add_body(name=name, mocap=True, pos=AWAY)

    def limb(start: Triple, end: Triple, radius: float, rgba: Colour = SKIN) -> None:
        mirror = np.array([1, side, 1])
        body.add_geom(
            type=CAPSULE,
            fromto=(*(mirror * start), *(mirror * end)),
            size=(radius, 0, 0),
            rgba=rgba,
            contype=0,
            conaffinity=0,
            group=HAND_GROUP,
        )

    # The palm is upright next to the grip point, the back of the hand turned outwards (+y).
    body.add_geom(
        type=ELLIPSOID,
        size=(0.048, 0.019, 0.043),
        pos=(0.078, side * 0.026, 0.002),
        rgba=SKIN,
        contype=0,
        conaffinity=0,
        group=HAND_GROUP,
    )
    for height, reach in ((0.030, 0.94), (0.010, 1.0), (-0.010, 0.96), (-0.029, 0.82)):
        knuckle = (0.045, 0.046, height)
        middle = (0.045 - 0.052 * reach, 0.050, height * 0.95)
        tip = (0.045 - 0.078 * reach, 0.024, height * 0.9)
        limb((0.085, 0.030, height * 0.9), knuckle, 0.0105)
        limb(knuckle, middle, 0.0100)
        limb(middle, tip, 0.0090)
    limb((0.092, 0.008, 0.026), (0.048, -0.034, 0.030), 0.0125)
    limb((0.048, -0.034, 0.030), (0.006, -0.046, 0.022), 0.0105)
    limb((0.115, 0.022, 0.000), (0.155, 0.020, 0.010), 0.026)
    limb((0.150, 0.020, 0.008), (0.185, 0.020, 0.016), 0.030, CUFF)
    limb((0.180, 0.020, 0.016), (0.50, 0.030, 0.13), 0.040, SLEEVE)


def vary_grip(rng: np.random.Generator) -> Array:
    """Return a random rotation (3, 3) to multiply a grip with, since forearms vary."""
    return rotation_about((0, 0, 1), rng.uniform(-0.15, 0.15)) @ rotation_about(
        (0, 1, 0), rng.uniform(-0.12, 0.06)
    )


def drawn_back(grip: Pose) -> Pose:
    """Return the pose of a hand drawn back from a cup along the forearm."""
    return grip.translated(*(0.11 * grip.rotation[:, 0] + (0, 0, 0.02)))


@dataclass(frozen=True)
class Script:
    """Poses before the decision: one per control step, for every hand and every moving object."""

    hands: dict[str, list[Pose]]
    objects: dict[str, list[Pose]]
    highlights: tuple[int, ...]
    """Control steps that show the evidence best, for contact sheets."""

    @property
    def steps(self) -> int:
        """Control steps until the hands have gone."""
        return len(next(iter(self.hands.values())))


class Choreography:
    """Writer of a `Script`, move by move.

    Durations must not depend on the answer: all answers decide at the same step.
    """

    def __init__(self, hands: dict[str, Pose], objects: dict[str, Pose]) -> None:
        self._hands = {name: [pose] for name, pose in hands.items()}
        self._objects = {name: [pose] for name, pose in objects.items()}
        self._highlights: list[int] = []

    def where(self, name: str) -> Pose:
        """Return the current pose of a hand or an object."""
        return (self._hands.get(name) or self._objects[name])[-1]

    def move(
        self,
        steps: int,
        moves: dict[str, Pose],
        *,
        carry: dict[str, tuple[str, ...]] | None = None,
        arc: dict[str, Array] | None = None,
    ) -> None:
        """Move hands to poses with minimum jerk, and the objects that they `carry`.

        `arc` has an offset at half way for each hand.
        """
        starts = {name: self.where(name) for name in moves}
        held = {name: self.where(name) for load in (carry or {}).values() for name in load}
        for progress in minimum_jerk(np.arange(1, steps + 1) / steps):
            self._wait()
            for name, end in moves.items():
                bow = 4 * progress * (1 - progress) * (arc or {}).get(name, np.zeros(3))
                position = (1 - progress) * starts[name].position + progress * end.position + bow
                self._hands[name][-1] = Pose(
                    position, end.rotation if progress > 0.3 else starts[name].rotation
                )
            for hand, load in (carry or {}).items():
                shift = self._hands[hand][-1].position - starts[hand].position
                for name in load:
                    self._objects[name][-1] = held[name].translated(*shift)

    def put(self, name: str, pose: Pose) -> None:
        """Set the exact pose of an object, without the rounding of the moves before."""
        self._objects[name][-1] = pose

    def wait(self, steps: int) -> None:
        """Keep everything still for some control steps."""
        for _ in range(steps):
            self._wait()

    def highlight(self, steps_ago: int = 0) -> None:
        """Mark this moment, or one shortly before it, for summaries."""
        self._highlights.append(len(next(iter(self._hands.values()))) - 1 - steps_ago)

    def script(self) -> Script:
        """Return the script so far."""
        return Script(self._hands, self._objects, tuple(self._highlights))

    def _wait(self) -> None:
        for track in (*self._hands.values(), *self._objects.values()):
            track.append(track[-1])
