"""Pantry: a hand lifts identical cups, each over a block of another colour. Later a card asks.

The robot must lift the cup over the block of the card's colour. The question comes after the
evidence: everything that was seen must be kept, and the card decides what is recalled.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import mujoco
import numpy as np

from chameleon_policy.camo.events import Event, happened, names
from chameleon_policy.camo.geometry import Array, Pose
from chameleon_policy.camo.hand import (
    AWAY,
    LEFT_GRIP,
    RIGHT_GRIP,
    Choreography,
    Script,
    add_hand,
    drawn_back,
    vary_grip,
)
from chameleon_policy.camo.objects import (
    CUP_HEIGHT,
    CUP_SHADE,
    CUP_WHITE,
    PALETTE,
    STAND_HEIGHT,
    UNDERGROUND,
    add_block,
    add_card,
    add_cup,
    add_stand,
)
from chameleon_policy.camo.scoring import Verdict
from chameleon_policy.camo.tasks.task import (
    Span,
    Task,
    arm_is_back,
    check_span,
    failure,
    standing,
)
from chameleon_policy.camo.world import World
from chameleon_policy.suite import Answer

CUPS, QUESTIONS = (3, 8), (1, 3)
"""Fewest and most cups, and questions."""
SPACING, ROWS = 0.070, (0.51, 0.62)
"""Distance (m) between neighbours across the table, and of the two rows from the robot: cups
stand in them by turns, so that fingers fit between them.
"""
STAND = (0.39, 0.0)
CARD_POSE = Pose(np.array([*STAND, STAND_HEIGHT]), np.eye(3))
LIFT = 0.10
"""A cup counts as lifted from this height on (m)."""
AT_HOME, UPRIGHT = 0.035, 0.35
"""A cup is at home when it stands this close to it (m) and is tilted by less than this (rad)."""
UNCOVERED = 0.04
"""A block is seen when its cup is this far away from home (m)."""
GRIP = CUP_HEIGHT * 0.62
WAITING = {"left_hand": -0.45, "right_hand": 0.45}
"""Where a hand waits while the other one lifts cups: to the side (m)."""


class Pantry(Task):
    """Task whose z has the cup over the asked colour, for each question."""

    name = "pantry"
    gym_id = "Camo/Pantry-v0"
    instruction = "Lift the cup over the block of the card's colour."
    others = ()
    hands = ("left_hand", "right_hand")
    signs = ("card",)
    marks = tuple(PALETTE)
    steps_per_choice = 75
    dials = {"cups": (6, 6), "questions": (2, 2), "shown": (8, 8)}  # noqa: RUF012
    practice = {"shown": (1, 8)}  # noqa: RUF012

    def __init__(
        self,
        *,
        cups: Span = dials["cups"],
        questions: Span = dials["questions"],
        shown: Span = dials["shown"],
    ) -> None:
        cups = check_span("cups", cups, *CUPS)
        self.candidates = tuple(f"cup_{number}" for number in range(cups[1]))
        super().__init__(cups=cups, questions=check_span("questions", questions, *QUESTIONS))
        self._shown = check_span("shown", shown, 1, CUPS[1])
        self._colour: dict[str, str] = {}
        """Cup -> colour of the block under it, for the cups that are shown."""
        self._asked: list[str] = []
        """The colour of every question."""
        self._grips: dict[str, Array] = {}
        self._card = self._lifted = ""

    def possible_with(self, drawn: Mapping[str, int]) -> tuple[Answer, ...]:
        """Return every sequence of cups."""
        return tuple(itertools.product(range(drawn["cups"]), repeat=drawn["questions"]))

    @property
    def decisions(self) -> int:
        """One for each question."""
        return self.drawn["questions"]

    @property
    def present(self) -> tuple[str, ...]:
        """The cups of this episode."""
        return self.candidates[: self.drawn["cups"]]

    def build(self, spec: mujoco.MjSpec) -> None:
        """Add cups, two hands, the stand, and a block and a card of every colour."""
        for cup in self.candidates:
            add_cup(spec, cup, CUP_WHITE, CUP_SHADE)
        for name, colour in PALETTE.items():
            add_block(spec, f"{name}_block", colour)
            add_card(spec, f"{name}_card", colour)
        add_stand(spec, *STAND)
        add_hand(spec, "left_hand", mirrored=True)
        add_hand(spec, "right_hand")

    def layout(self, rng: np.random.Generator) -> dict[str, Pose]:
        """Return cups in two rows by turns, with some disorder."""
        cups, first = self.present, int(rng.integers(2))
        shift = rng.uniform(-0.015, 0.015, 2)
        places = [
            np.array([ROWS[(number + first) % 2], (number - (len(cups) - 1) / 2) * SPACING])
            for number in range(len(cups))
        ]
        return {
            cup: standing(*(place + shift + rng.uniform(-0.006, 0.006, 2)))
            for cup, place in zip(cups, places, strict=True)
        }

    def choreograph(self, z: Answer, homes: dict[str, Pose], rng: np.random.Generator) -> Script:
        """Lift the shown cups in random order.

        The colours that are asked are drawn first: z decides only which cups they are under. At
        least as many cups are shown as there are questions, for every z.
        """
        assert isinstance(z, tuple)
        cups = self.present
        low, high = (min(max(end, self.decisions), len(cups)) for end in self._shown)
        shown = int(rng.integers(low, high + 1))
        self.difficulty = {"shown": shown}
        colours = rng.permutation(list(PALETTE)).tolist()
        answers = list(dict.fromkeys(cups[index] for index in z))
        others = [cup for cup in rng.permutation(cups).tolist() if cup not in answers]
        chosen = [*answers, *others][:shown]
        self._colour = dict(zip(chosen, colours, strict=False))
        self._asked = [self._colour[cups[index]] for index in z]
        self._grips = {
            "left_hand": vary_grip(rng) @ LEFT_GRIP,
            "right_hand": vary_grip(rng) @ RIGHT_GRIP,
        }
        scene = self.new_choreography(homes)
        for number, index in enumerate(rng.permutation(shown)):
            self._show(scene, chosen[index], first=number == 0)
        scene.move(4, {hand: self._at(hand, AWAY[0], AWAY[2]) for hand in self.hands})
        return scene.script()

    def _show(self, scene: Choreography, cup: str, *, first: bool) -> None:
        """Let the hand of that side lift a cup and put it back."""
        home = scene.where(cup)
        hand, idle = self.hands if home.position[1] < 0 else self.hands[::-1]
        grip = Pose(home.position + (0, 0, GRIP), self._grips[hand])
        scene.move(5 if first else 3, {hand: drawn_back(grip), idle: self._at(idle, 0.86, 0.10)})
        scene.move(1, {hand: grip})
        scene.move(2, {hand: grip.translated(0, 0, 0.13)}, carry={hand: (cup,)})
        scene.wait(2)
        scene.highlight()
        scene.move(2, {hand: grip}, carry={hand: (cup,)})
        scene.put(cup, home)
        scene.move(1, {hand: drawn_back(grip)})

    def _at(self, hand: str, x: float, z: float) -> Pose:
        return Pose(np.array([x, WAITING[hand], z]), self._grips[hand])

    def furnish(self, world: World, decisions: int) -> None:
        """Put every block under its cup, and the card of the present question on the stand."""
        self._card = self._asked[decisions - 1] if decisions else ""
        away = Pose(UNDERGROUND, np.eye(3))
        cup_over = {colour: cup for cup, colour in self._colour.items()}
        for colour in PALETTE:
            block = world.pose(cup_over[colour]) if colour in cup_over else away
            world.place_scenery(f"{colour}_block", block)
            world.place_scenery(f"{colour}_card", CARD_POSE if colour == self._card else away)
        world.refresh()

    def sign(self, name: str) -> Pose | None:
        """Return the pose of the card while one is on the stand."""
        return CARD_POSE if self._card else None

    def mark(self, world: World, name: str) -> Array:
        """Return the colour that is seen under a cup or on the card, one-hot; zeros for none."""
        if name in self.signs:
            colour = self._card
        else:
            shift = world.position(name) - self._homes[name].position
            colour = self._colour.get(name, "") if np.linalg.norm(shift) > UNCOVERED else ""
        return np.array([float(colour == each) for each in PALETTE])

    def begin(self, homes: dict[str, Pose]) -> None:
        """Begin the execution with nothing lifted."""
        super().begin(homes)
        self._lifted = ""

    def watch(self, world: World) -> None:
        """Note handling, lifts and returns.

        The next question comes when every cup stands at home and the arm is back.
        """
        touching, at_home = world.touching(), True
        for cup in self.present:
            self.note_handling(world, touching, cup)
            held = frozenset(("gripper", cup)) in touching
            shift = world.position(cup) - self._homes[cup].position
            if held and shift[2] >= LIFT:
                self.note("lifted", cup)
                self._lifted = cup
            in_place = bool(np.linalg.norm(shift) <= AT_HOME and world.tilt(cup) < UPRIGHT)
            if not in_place and frozenset(("table", cup)) in touching:
                self.note(
                    "moved", cup
                )  # also in the gripper: nobody may look under a cup like this
            at_home &= in_place and not held
        asked = sum(event.kind == "decision" for event in self.events)
        if self._lifted and at_home and asked < self.decisions and arm_is_back(world):
            self.append("returned", self._lifted)
            self._lifted = ""
            self.forget("touched", "raised", "lifted", "lowered")
            self.append("decision")

    def finished(self, step: int) -> bool:
        """Return true shortly after the last lift, or when something is spoilt for good."""
        rounds = _rounds(self.events)
        if _spoilt(rounds):
            return True
        lifts = [event.step for event in rounds[-1] if event.kind == "lifted"]
        return len(rounds) == self.decisions and bool(lifts) and step >= lifts[0] + 3

    def judge(self, events: Sequence[Event]) -> Verdict:
        """Return the choices if exactly one cup was lifted for each question.

        A policy that looks under a second cup needs no memory.
        """
        rounds = _rounds(events)
        lifted = [names(each, "lifted") for each in rounds]
        if len(rounds) == self.decisions and all(lifted) and not _spoilt(rounds):
            return Verdict(tuple(self.candidates.index(each[0]) for each in lifted))
        for each in rounds:
            if len(raised := names(each, "raised")) > 1:
                return Verdict(None, f"two cups: {', '.join(raised)} were raised")
        if moved := names(events, "moved"):
            word = "not put back" if set(moved) & set(names(events, "raised")) else "pushed away"
            return Verdict(None, f"{word}: {', '.join(moved)}")
        if reason := failure(events, "a cup"):
            return Verdict(None, reason)
        for each in rounds:
            if happened(each, "lowered") and not happened(each, "lifted"):
                low = ", ".join(names(each, "lowered"))
                return Verdict(None, f"set down: {low} was raised, but not high enough")
        return Verdict(None, f"timeout: {sum(map(bool, lifted))} of {self.decisions} cups lifted")


def _rounds(events: Sequence[Event]) -> list[list[Event]]:
    """Return the events after each decision."""
    rounds: list[list[Event]] = []
    for event in events:
        if event.kind == "decision":
            rounds.append([])
        elif rounds:
            rounds[-1].append(event)
    return rounds


def _spoilt(rounds: Sequence[Sequence[Event]]) -> bool:
    return any(
        happened(each, "toppled")
        or happened(each, "dropped")
        or happened(each, "moved")
        or len(names(each, "raised")) > 1
        or (happened(each, "lowered") and not happened(each, "lifted"))
        for each in rounds
    )
