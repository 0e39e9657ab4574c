"""The base class of tasks: objects, layout, choreography, events and verdict.

A new task is a file with one subclass of `Task`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import chain, product
from statistics import mean
from typing import ClassVar

import mujoco
import numpy as np

from chameleon_policy.camo.events import Event, Kind, happened, names
from chameleon_policy.camo.geometry import Array, Pose, rotation_vector
from chameleon_policy.camo.hand import AWAY, UPRIGHT_GRIP, Choreography, Script
from chameleon_policy.camo.robot import DECISION_POSE
from chameleon_policy.camo.scoring import Summary, Verdict, summarise
from chameleon_policy.camo.world import World
from chameleon_policy.seeds import stream
from chameleon_policy.suite import Answer, EpisodeResult

Span = int | tuple[int, int]
"""A number, or a range (both ends included) from which every episode draws one."""

SLOT_NAMES = ("present", "x", "y", "z", "axis_x", "axis_y", "axis_z")
"""Numbers of an object slot: whether it is visible, its position, its z axis (of a hand: the
direction of its forearm).
"""
RAISED, GROUNDED, TOPPLED = 0.03, 0.012, 0.7
"""Height above home (m) from which an object counts as raised, height below which it stands again,
and tilt (rad) from which it has fallen over.
"""

RETURNED = (0.035, 0.25, 0.7)
"""The arm is back within these: position (m), rotation (rad), gripper at least this open."""

PARKED = np.array([-1.5, 0.0, 0.0])
"""Where the first candidate stands that an episode does not use: behind the wall. No camera sees it
there and nothing touches it.
"""
PARKED_APART = 0.3


def check_span(name: str, span: Span, lowest: int, highest: int) -> tuple[int, int]:
    """Return the range of a dial, or raise a ValueError that says what it may be."""
    low, high = span if isinstance(span, (tuple, list)) and len(span) == 2 else (span, span)
    whole = all(
        isinstance(end, (int, np.integer)) and not isinstance(end, bool) for end in (low, high)
    )
    if not whole or not lowest <= low <= high <= highest:
        raise ValueError(
            f"{name} must be a number or a (low, high) pair between {lowest} and {highest}, "
            f"got {span!r}"
        )
    return int(low), int(high)


class Task(ABC):
    """Task of the benchmark; an instance serves one environment and keeps the episode's events.

    Dials may decide which answers there are (the number of cups, say). They are given to
    `Task.__init__`, and every episode draws them from its seed, each from a stream of its own:
    z is drawn among the answers that are `possible` then. As many candidates are built as the
    largest number asks for; those that are not `present` in an episode are parked.
    """

    name: ClassVar[str]
    gym_id: ClassVar[str]
    instruction: ClassVar[str]
    candidates: tuple[str, ...]
    """Objects to choose from, from left to right at the beginning."""
    others: ClassVar[tuple[str, ...]]
    hands: ClassVar[tuple[str, ...]]
    signs: ClassVar[tuple[str, ...]] = ()
    """Scenery that has an object slot, such as the card that asks."""
    marks: ClassVar[tuple[str, ...]] = ()
    """Numbers of an object slot beyond its pose, such as colours."""
    steps_per_choice: ClassVar[int]
    """Limit of control steps for each choice."""
    choosing: ClassVar[Kind] = "raised"
    """The first event that identifies the chosen candidate."""
    dials: ClassVar[dict[str, tuple[int, int]]] = {}
    """Difficulty: each dial, a keyword argument of the constructor, and its default range. An
    episode's draw is in `difficulty`.
    """
    practice: ClassVar[dict[str, tuple[int, int]]] = {}
    """Dials of demonstrations that differ from the default."""

    def __init__(self, **deciding: tuple[int, int]) -> None:
        self._deciding = deciding
        self.drawn = {name: high for name, (_, high) in deciding.items()}
        """The dials that decide which answers there are, as drawn for this episode; before the
        first one, the largest.
        """
        self._possible = {
            numbers: self.possible_with(dict(zip(deciding, numbers, strict=True)))
            for numbers in product(*(range(low, high + 1) for low, high in deciding.values()))
        }
        self.answers = tuple(dict.fromkeys(chain.from_iterable(self._possible.values())))
        """Every z of any episode."""
        self.difficulty: dict[str, int] = {}
        """The other dials of this episode (swaps, hovers ...)."""
        self._homes: dict[str, Pose] = {}
        self._log: list[Event] = []
        self._label: dict[str, str] = {}
        self._seen: set[tuple[Kind, str]] = set()
        self._step = 0

    @abstractmethod
    def possible_with(self, drawn: Mapping[str, int]) -> tuple[Answer, ...]:
        """Return the answers of an episode that drew these numbers; all are equally likely."""

    def draw(self, seed: int) -> dict[str, int]:
        """Return the numbers that the episode of a seed draws for `drawn`."""
        return {
            name: low if low == high else int(stream(seed, name).integers(low, high + 1))
            for name, (low, high) in self._deciding.items()
        }

    @property
    def possible(self) -> tuple[Answer, ...]:
        """The answers of this episode, all equally likely."""
        return self._possible[tuple(self.drawn.values())]

    @property
    def ranges(self) -> tuple[str, ...]:
        """Dials that decide which answers there are and that are not the same in all episodes."""
        return tuple(name for name, (low, high) in self._deciding.items() if low < high)

    @property
    def chance(self) -> float:
        """DSR of a guess, on average over all episodes."""
        return mean(1 / len(answers) for answers in self._possible.values())

    @property
    def decisions(self) -> int:
        """The number of decisions of this episode."""
        return 1

    @property
    def execution_steps(self) -> int:
        """Limit of control steps after the first decision of this episode."""
        return self.steps_per_choice * self.decisions

    @property
    def present(self) -> tuple[str, ...]:
        """The candidates of this episode: the first ones, as many as it drew."""
        return self.candidates

    @property
    def objects(self) -> tuple[str, ...]:
        """All objects, also those that are parked."""
        return (*self.candidates, *self.others)

    @property
    def slots(self) -> int:
        """The number of object slots: objects, signs and hands."""
        return len(self.objects) + len(self.signs) + len(self.hands)

    @property
    def slot_names(self) -> tuple[str, ...]:
        """Names of the numbers of an object slot."""
        return (*SLOT_NAMES, *self.marks)

    @property
    def varied(self) -> dict[str, int]:
        """The drawn numbers of dials that are not at their default."""
        return {
            name: number
            for name, number in self.drawn.items()
            if self._deciding[name] != self.dials[name]
        }

    def parked(self) -> dict[str, Pose]:
        """Return the poses of the candidates that this episode does not use."""
        absent = self.candidates[len(self.present) :]
        return {
            name: Pose(PARKED + (0.0, number * PARKED_APART, 0.0), np.eye(3))
            for number, name in enumerate(absent)
        }

    def summarise(self, episodes: Sequence[EpisodeResult]) -> Summary:
        """Return MSR, DSR and SR of many episodes; chance is the mean of theirs."""
        chances = [each.chance for each in episodes if each.chance is not None]
        return summarise(
            [each.score for each in episodes], mean(chances) if chances else self.chance
        )

    @abstractmethod
    def build(self, spec: mujoco.MjSpec) -> None:
        """Add the objects and hands to a scene."""

    @abstractmethod
    def layout(self, rng: np.random.Generator) -> dict[str, Pose]:
        """Return the initial poses of the objects in play, the same for every z."""

    @abstractmethod
    def choreograph(self, z: Answer, homes: dict[str, Pose], rng: np.random.Generator) -> Script:
        """Return the evidence for z, and set `difficulty`.

        Its length and the final poses of the objects must not depend on z.
        """

    def furnish(self, world: World, decisions: int) -> None:  # noqa: B027 (most tasks have none)
        """Place the scenery: at the beginning, and anew at every decision, counted from 1."""

    def sign(self, name: str) -> Pose | None:
        """Return the pose of a sign; None while it is not there."""
        return None

    def mark(self, world: World, name: str) -> Array:
        """Return the `marks` of an object or a sign."""
        return np.zeros(len(self.marks))

    @abstractmethod
    def watch(self, world: World) -> None:
        """Read the world after a control step of the execution and `note` its events."""

    @abstractmethod
    def finished(self, step: int) -> bool:
        """Return whether the outcome is settled."""

    @abstractmethod
    def judge(self, events: Sequence[Event]) -> Verdict:
        """Return the choice, or why the manipulation does not count, from the events alone."""

    def choices(self, events: Sequence[Event]) -> tuple[int | None, ...]:
        """Return for each decision the index of the candidate chosen after it, None for none.

        A choice counts even if the manipulation fails.
        """
        found: list[int | None] = []
        for event in events:
            if event.kind == "decision":
                found.append(None)
            elif (
                event.kind == self.choosing
                and event.object in self.candidates
                and found
                and found[-1] is None
            ):
                found[-1] = self.candidates.index(event.object)
        return tuple(found)

    def hidden(self, world: World) -> set[str]:
        """Return the objects that no camera can see, first of all the parked ones."""
        return set(self.candidates) - set(self.present)

    def begin(self, homes: dict[str, Pose]) -> None:
        """Begin the execution of an episode, with the objects at these poses."""
        self._homes, self._log, self._seen, self._step = homes, [], set(), 0
        in_order = sorted(self.present, key=lambda name: homes[name].position[1])
        self._label = dict(zip(in_order, self.present, strict=True))

    def observe(self, world: World, step: int) -> None:
        """Watch one control step."""
        self._step = step
        self.watch(world)

    @property
    def events(self) -> tuple[Event, ...]:
        """The log so far."""
        return tuple(self._log)

    def append(self, kind: Kind, name: str = "") -> None:
        """Append an event to the log.

        Candidates that look alike are named by their index at the decision: `cup_0` is the
        leftmost.
        """
        self._log.append(Event(self._step, kind, self._label.get(name, name)))
        self._seen.add((kind, name))

    def note(self, kind: Kind, name: str = "") -> None:
        """Append an event to the log if it is new for this object."""
        if not self.noted(kind, name):
            self.append(kind, name)

    def noted(self, kind: Kind, name: str = "") -> bool:
        """Return whether an object's event is in the log and was not forgotten."""
        return (kind, name) in self._seen

    def forget(self, *kinds: Kind) -> None:
        """Allow events of these kinds to be noted again; the log keeps them."""
        self._seen = {(kind, name) for kind, name in self._seen if kind not in kinds}

    def note_handling(self, world: World, touching: set[frozenset[str]], name: str) -> None:
        """Note what can happen to a gripped object: touched, raised, lowered, dropped, toppled."""
        held = frozenset(("gripper", name)) in touching
        height = float(world.position(name)[2] - self._homes[name].position[2])
        if held:
            self.note("touched", name)
        if height > RAISED:
            self.note("raised", name)
            if not held:
                self.note("dropped", name)
        elif height < GROUNDED and self.noted("raised", name):
            self.note("lowered", name)
        if world.tilt(name) > TOPPLED and not held:
            self.note("toppled", name)

    def new_choreography(self, homes: dict[str, Pose]) -> Choreography:
        """Return a choreography with hands away and objects at home."""
        hands = {name: Pose(AWAY, UPRIGHT_GRIP) for name in self.hands}
        return Choreography(hands, {name: homes[name] for name in self.objects})


def arm_is_back(world: World) -> bool:
    """Return whether the arm is near the decision pose with its gripper open."""
    tool = world.tool()
    near = np.linalg.norm(tool.position - DECISION_POSE.position) < RETURNED[0]
    turned = np.linalg.norm(rotation_vector(tool.rotation @ DECISION_POSE.rotation.T))
    return bool(near and turned < RETURNED[1] and world.gripper() > RETURNED[2])


def standing(x: float, y: float) -> Pose:
    """Return an upright pose on the table."""
    return Pose(np.array([x, y, 0.0]), np.eye(3))


def in_a_row(
    names: Sequence[str],
    rng: np.random.Generator,
    *,
    x: float,
    spacing: float,
    shift: float,
    disorder: float,
) -> dict[str, Pose]:
    """Return poses of objects side by side at a distance x from the robot.

    The row as a whole is shifted at random, and each object a little more.
    """
    centre = np.array([x, 0.0]) + rng.uniform(-shift, shift, 2)
    middle = (len(names) - 1) / 2
    return {
        name: standing(
            *(centre + (0.0, (index - middle) * spacing) + rng.uniform(-disorder, disorder, 2))
        )
        for index, name in enumerate(names)
    }


def failure(events: Sequence[Event], thing: str) -> str:
    """Return the common reasons why a manipulation does not count, the gravest first."""
    if happened(events, "toppled"):
        return f"toppled: {', '.join(names(events, 'toppled'))}"
    if happened(events, "dropped"):
        return f"dropped: {', '.join(names(events, 'dropped'))}"
    if not happened(events, "touched"):
        return f"no contact: {thing} was never touched"
    return ""
