"""Seasonings: a hand lifts shakers one after the other, repeats allowed.

The robot must add them to the bowl in that order. After every addition the scene and the arm return
exactly to the same state: only memory knows the progress.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import mujoco
import numpy as np

from chameleon_policy.camo.events import Event, happened, names
from chameleon_policy.camo.geometry import Pose
from chameleon_policy.camo.hand import AWAY, UPRIGHT_GRIP, Script, add_hand, vary_grip
from chameleon_policy.camo.objects import BOWL_RADIUS, SHAKER_HEIGHT, SPICES, add_bowl, add_shaker
from chameleon_policy.camo.scoring import Verdict
from chameleon_policy.camo.tasks.task import (
    Span,
    Task,
    arm_is_back,
    check_span,
    failure,
    in_a_row,
    standing,
)
from chameleon_policy.camo.world import World
from chameleon_policy.suite import Answer

LENGTHS = (1, 6)
"""Shortest and longest sequence."""
STROKES, STROKE = 2, 0.02
"""A shake: this many strokes down of at least this length (m), with the lid over the bowl."""
AT_HOME = 0.035
"""A shaker is back when it stands this close (m) to its home ..."""
UPRIGHT = 0.2
"""... and is tilted by less than this (rad)."""
GRIP = SHAKER_HEIGHT * 0.5


class Seasonings(Task):
    """Task whose z is the sequence of shakers, three by default."""

    name = "seasonings"
    gym_id = "Camo/Seasonings-v0"
    instruction = "Add the seasonings to the bowl in the order in which they were shown."
    candidates = ("shaker_0", "shaker_1", "shaker_2")
    others = ("bowl",)
    hands = ("hand",)
    steps_per_choice = 90
    dials = {"length": (3, 3)}  # noqa: RUF012

    def __init__(self, *, length: Span = dials["length"]) -> None:
        super().__init__(length=check_span("length", length, *LENGTHS))
        self._held = ""
        self._strokes = 0
        self._turning_point = 0.0
        self._falling = False
        self._shaken = ""

    def possible_with(self, drawn: Mapping[str, int]) -> tuple[Answer, ...]:
        """Return every sequence of this length."""
        return tuple(itertools.product(range(len(self.candidates)), repeat=drawn["length"]))

    @property
    def decisions(self) -> int:
        """One for each shaker of the sequence."""
        return self.drawn["length"]

    def build(self, spec: mujoco.MjSpec) -> None:
        """Add three shakers, a bowl and a hand."""
        for shaker, spice in zip(self.candidates, SPICES, strict=True):
            add_shaker(spec, shaker, spice)
        add_bowl(spec, "bowl")
        add_hand(spec, "hand")

    def layout(self, rng: np.random.Generator) -> dict[str, Pose]:
        """Return shakers in a row with some disorder, the bowl between them and the robot."""
        homes = in_a_row(self.candidates, rng, x=0.60, spacing=0.15, shift=0.015, disorder=0.01)
        homes["bowl"] = standing(
            *(np.array([0.44, 0.0]) + rng.uniform((-0.012, -0.04), (0.012, 0.04)))
        )
        return homes

    def choreograph(self, z: Answer, homes: dict[str, Pose], rng: np.random.Generator) -> Script:
        """Lift the shakers, each as long; between two lifts the hand lets go and draws back."""
        assert isinstance(z, tuple)
        self.difficulty = {}
        scene = self.new_choreography(homes)
        rotation = vary_grip(rng) @ UPRIGHT_GRIP
        for number, index in enumerate(z):
            shaker = self.candidates[index]
            grip = Pose(homes[shaker].position + (0, 0, GRIP), rotation)
            scene.move(5 if number == 0 else 3, {"hand": grip.translated(0.09, 0, 0.01)})
            scene.move(1, {"hand": grip})
            scene.move(2, {"hand": grip.translated(0.01, 0, 0.12)}, carry={"hand": (shaker,)})
            scene.wait(1)
            scene.highlight()
            scene.move(2, {"hand": grip}, carry={"hand": (shaker,)})
            scene.put(shaker, homes[shaker])
            scene.move(1, {"hand": grip.translated(0.09, 0, 0.01)})
        scene.wait(int(rng.integers(0, 2)))
        scene.move(2, {"hand": scene.where("hand").translated(0.14, 0, 0.08)})
        scene.move(4, {"hand": Pose(AWAY, UPRIGHT_GRIP)})
        return scene.script()

    def begin(self, homes: dict[str, Pose]) -> None:
        """Begin the execution with nothing added."""
        super().begin(homes)
        self._held = self._shaken = ""

    def watch(self, world: World) -> None:
        """Note handling, shakes and returns.

        An addition is complete when every shaker stands at home and the arm is back.
        """
        touching = world.touching()
        at_home = True
        for shaker in self.candidates:
            self.note_handling(world, touching, shaker)
            held = frozenset(("gripper", shaker)) in touching
            rests = any(shaker in pair and "gripper" not in pair for pair in touching)
            away = float(np.linalg.norm(world.position(shaker) - self._homes[shaker].position))
            if held and away > AT_HOME:
                self._count_strokes(world, shaker)
            elif not held and away > AT_HOME and rests:
                self.note("moved", shaker)  # on the table, or in the bowl
            elif not held and shaker == self._held:
                self._held = ""  # it stands at home: the next pick counts its strokes anew
            at_home &= not held and away <= AT_HOME and world.tilt(shaker) < UPRIGHT
        if self._shaken and at_home and arm_is_back(world):
            self.append("added", self._shaken)
            self._held = self._shaken = ""
            self.forget("touched", "raised", "lowered", "shaken")
            if sum(event.kind == "added" for event in self.events) < self.decisions:
                self.append("decision")

    def _count_strokes(self, world: World, shaker: str) -> None:
        pose = world.pose(shaker)
        lid = pose.position + pose.rotation[:, 2] * SHAKER_HEIGHT
        height = float(lid[2])
        if self._held != shaker:
            self._held, self._strokes, self._turning_point, self._falling = shaker, 0, height, False
        over_bowl = np.hypot(*(lid - world.position("bowl"))[:2]) < BOWL_RADIUS
        # The turning point follows the lid until the lid has come back by the length of a stroke.
        if self._falling:
            self._turning_point = min(self._turning_point, height)
            if height > self._turning_point + STROKE:
                self._falling, self._turning_point = False, height
        else:
            self._turning_point = max(self._turning_point, height)
            if height < self._turning_point - STROKE:
                self._falling, self._turning_point = True, height
                self._strokes += bool(over_bowl)
        if self._strokes >= STROKES and not self._shaken:
            self._shaken = shaker
            self.note("shaken", shaker)

    def finished(self, step: int) -> bool:
        """Return true after the last addition, or when something is spoilt for good."""
        events = self.events
        return _spoilt(events) or sum(event.kind == "added" for event in events) >= self.decisions

    def judge(self, events: Sequence[Event]) -> Verdict:
        """Return the choices if all shakers were added, each put back before the next."""
        added = [event.object for event in events if event.kind == "added"]
        if len(added) == self.decisions and not _spoilt(events):
            return Verdict(tuple(self.candidates.index(shaker) for shaker in added))
        if pair := _raised_together(events):
            return Verdict(None, f"two shakers before returning: {', '.join(pair)}")
        if happened(events, "moved") and not happened(events, "toppled"):
            moved = names(events, "moved")
            word = "not put back" if set(moved) & set(names(events, "raised")) else "pushed away"
            return Verdict(None, f"{word}: {', '.join(moved)}")
        if reason := failure(events, "a shaker"):
            return Verdict(None, reason)
        return Verdict(None, f"timeout: {len(added)} of {self.decisions} additions")


def _spoilt(events: Sequence[Event]) -> bool:
    return any(happened(events, kind) for kind in ("toppled", "dropped", "moved")) or bool(
        _raised_together(events)
    )


def _raised_together(events: Sequence[Event]) -> list[str]:
    """Return shakers raised without a return to the decision pose between them.

    Their aliased decision was left out.
    """
    raised: list[str] = []
    for event in events:
        if event.kind == "added":
            raised = []
        elif event.kind == "raised" and event.object not in raised:
            raised.append(event.object)
        if len(raised) > 1:
            return raised
    return []
