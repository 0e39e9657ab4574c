"""Clean plate: a hand takes up one of three plates and puts it back.

The robot must take the sponge and wipe that plate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import mujoco
import numpy as np
import numpy.typing as npt

from chameleon_policy.camo.events import Event, happened, names
from chameleon_policy.camo.geometry import Pose
from chameleon_policy.camo.hand import AWAY, FLAT_GRIP, Script, add_hand, vary_grip
from chameleon_policy.camo.objects import PLATE_INNER, PLATE_RADIUS, SPONGE, add_plate, add_sponge
from chameleon_policy.camo.scoring import Verdict
from chameleon_policy.camo.tasks.task import (
    Span,
    Task,
    check_span,
    failure,
    in_a_row,
    standing,
)
from chameleon_policy.camo.world import World
from chameleon_policy.suite import Answer

WIPED = 0.6
"""Share of the inner disc that the sponge must have covered in contact."""
MOVED = 0.03
"""A plate pushed further than this (m) spoils the manipulation."""
FLAT = 0.3
"""A sponge tilted further (rad) against the plate touches it with an edge and wipes nothing."""
CELL = 0.004


class CleanPlate(Task):
    """Task whose z is the index of the plate that the hand took up."""

    name = "clean-plate"
    gym_id = "Camo/CleanPlate-v0"
    instruction = "Take the sponge and wipe the plate that was used."
    candidates = ("plate_0", "plate_1", "plate_2")
    others = ("sponge",)
    hands = ("hand",)
    choosing = "wiped"
    steps_per_choice = 90
    dials = {"distractor_hovers": (0, 2)}  # noqa: RUF012

    def __init__(self, *, distractor_hovers: Span = dials["distractor_hovers"]) -> None:
        super().__init__()
        self._hovers = check_span("distractor_hovers", distractor_hovers, 0, 2)
        grid = np.arange(-PLATE_INNER, PLATE_INNER + CELL, CELL)
        cells = np.stack(np.meshgrid(grid, grid), -1).reshape(-1, 2)
        self._cells = cells[np.hypot(*cells.T) <= PLATE_INNER]
        self._wiped: dict[str, npt.NDArray[np.bool_]] = {}
        self._last_contact: dict[str, Pose] = {}

    def possible_with(self, drawn: Mapping[str, int]) -> tuple[Answer, ...]:
        """Return an answer for each plate."""
        return tuple(range(len(self.candidates)))

    def build(self, spec: mujoco.MjSpec) -> None:
        """Add three plates, a sponge and a hand."""
        for plate in self.candidates:
            add_plate(spec, plate)
        add_sponge(spec, "sponge")
        add_hand(spec, "hand")

    def layout(self, rng: np.random.Generator) -> dict[str, Pose]:
        """Return plates in a row with some disorder, the sponge between them and the robot."""
        homes = in_a_row(self.candidates, rng, x=0.585, spacing=0.172, shift=0.015, disorder=0.006)
        homes["sponge"] = standing(
            *(np.array([0.43, 0.0]) + rng.uniform((-0.02, -0.10), (0.02, 0.10)))
        )
        return homes

    def choreograph(self, z: Answer, homes: dict[str, Pose], rng: np.random.Generator) -> Script:
        """Return visits to plates, all equally long.

        In one of them the plate is taken up; in the others the hand only hovers.
        """
        hovers = int(rng.integers(self._hovers[0], self._hovers[1] + 1))
        turn_of_answer = int(rng.integers(hovers + 1))
        others = rng.permutation(2)[:hovers]
        self.difficulty = {"distractor_hovers": hovers}
        assert isinstance(z, int)
        not_z = [index for index in self.answers if index != z]
        visits = [not_z[index] for index in others]
        visits.insert(turn_of_answer, z)
        scene = self.new_choreography(homes)
        above, grip = 0.05, vary_grip(rng) @ FLAT_GRIP
        for number, index in enumerate(visits):
            plate = self.candidates[index]
            rim = Pose(homes[plate].position + (PLATE_RADIUS - 0.012, 0, 0.016), grip)
            scene.move(5 if number == 0 else 4, {"hand": rim.translated(0.06, 0, above)})
            if index == z:
                scene.move(2, {"hand": rim})
                scene.move(3, {"hand": rim.translated(0.01, 0, 0.12)}, carry={"hand": (plate,)})
                scene.wait(2)
                scene.highlight()
                scene.move(3, {"hand": rim}, carry={"hand": (plate,)})
                scene.put(plate, homes[plate])
                scene.move(1, {"hand": rim.translated(0.05, 0, 0.01)})
            else:
                scene.move(2, {"hand": rim.translated(0.0, 0, above)})
                scene.move(3, {"hand": rim.translated(-0.05, 0, above + 0.02)})
                scene.wait(2)
                scene.highlight()
                scene.move(3, {"hand": rim.translated(0.0, 0, above)})
                scene.move(1, {"hand": rim.translated(0.05, 0, above)})
        scene.move(2, {"hand": scene.where("hand").translated(0.12, 0, 0.08)})
        scene.move(4, {"hand": Pose(AWAY, FLAT_GRIP)})
        return scene.script()

    def begin(self, homes: dict[str, Pose]) -> None:
        """Begin the execution with nothing wiped."""
        super().begin(homes)
        self._wiped = {plate: np.zeros(len(self._cells), bool) for plate in self.candidates}
        self._last_contact = {}

    def coverage(self, plate: str) -> float:
        """Return the share of a plate's inner disc that the sponge has covered."""
        return float(self._wiped[plate].mean())

    def watch(self, world: World) -> None:
        """Note handling of the sponge, pushed plates and wiped area."""
        touching = world.touching()
        self.note_handling(world, touching, "sponge")
        sponge = world.pose("sponge")
        for plate in self.candidates:
            pose = world.pose(plate)
            if np.linalg.norm(pose.position - self._homes[plate].position) > MOVED:
                self.note("moved", plate)
            if world.tilt(plate) > 0.5:
                self.note("toppled", plate)
            flat = float(sponge.rotation[:, 2] @ pose.rotation[:, 2]) > np.cos(FLAT)
            if flat and frozenset(("sponge", plate)) in touching:
                self._wipe(plate, pose, sponge)
            else:
                self._last_contact.pop(plate, None)

    def _wipe(self, plate: str, pose: Pose, sponge: Pose) -> None:
        """Mark the area under the sponge.

        If the sponge lay on the plate at the last control step, also the area swept since then.
        """
        last = self._last_contact.get(plate, sponge)
        self._last_contact[plate] = sponge
        cells = pose.position[:2] + self._cells @ pose.rotation[:2, :2].T
        for share in np.linspace(0, 1, 5):
            centre = (1 - share) * last.position[:2] + share * sponge.position[:2]
            local = (cells - centre) @ sponge.rotation[:2, :2]
            self._wiped[plate] |= (np.abs(local) <= np.array(SPONGE[:2]) / 2).all(axis=1)
        if self.coverage(plate) >= WIPED:
            self.note("wiped", plate)

    def finished(self, step: int) -> bool:
        """Return true a second after a plate is wiped, or when something broke.

        The second shows a push and all strokes.
        """
        events = self.events
        if (
            any(happened(events, kind) for kind in ("toppled", "moved"))
            or len(names(events, "wiped")) > 1
        ):
            return True
        wiped = [event.step for event in events if event.kind == "wiped"]
        return bool(wiped) and step >= wiped[0] + 8

    def judge(self, events: Sequence[Event]) -> Verdict:
        """Return the choice if one plate was wiped, none moved and nothing knocked over."""
        wiped = names(events, "wiped")
        if len(wiped) > 1:
            return Verdict(None, f"two plates: {', '.join(wiped)} were wiped")
        if happened(events, "moved"):
            return Verdict(None, f"moved: {', '.join(names(events, 'moved'))}")
        if wiped and not happened(events, "toppled"):
            return Verdict(self.candidates.index(wiped[0]))
        return Verdict(None, failure(events, "the sponge") or "timeout: no plate was wiped")
