"""Shell game: a hand shows the ball under a cup, the cups are swapped, the hands leave.

The robot must lift the cup that hides the ball.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

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
from chameleon_policy.camo.objects import BALL_RADIUS, CUP_HEIGHT, CUP_RIM, add_ball, add_cup
from chameleon_policy.camo.scoring import Verdict
from chameleon_policy.camo.tasks.task import Span, Task, check_span, failure, in_a_row
from chameleon_policy.camo.world import World
from chameleon_policy.suite import Answer

ROWS: dict[int, dict[str, float]] = {
    3: {"x": 0.57, "spacing": 0.17, "shift": 0.02, "disorder": 0.012},
    4: {"x": 0.55, "spacing": 0.145, "shift": 0.015, "disorder": 0.008},
    5: {"x": 0.52, "spacing": 0.13, "shift": 0.008, "disorder": 0.006},
}
"""For each number of cups the row in which they stand: as wide as the third camera sees, with room
for an open gripper between two cups.
"""
LIFT = 0.10
"""A cup counts as lifted from this height on (m)."""
GRIP = CUP_HEIGHT * 0.62
FEW = 3
"""Up to this many cups, a hand need not go around a cup that stands in its way."""
BOW = {1: 0.085, 2: 0.115, 3: 0.155, 4: 0.20}
"""Distance (m) at half way between a carried cup and the row, by the number of places that it
moves: it touches no cup that stands between. Of three cups, all move by the first.
"""
AROUND = np.array([0.10, 0.0, 0.0])
"""How far a free hand goes around cups on its way to another (m)."""
SWAP_STEPS = 7
"""Control steps of a swap of cups at most two places apart."""
OUTSIDE = {"left_hand": -0.30, "right_hand": 0.30}


class ShellGame(Task):
    """Task whose z is the final position of the ball."""

    name = "shell-game"
    gym_id = "Camo/ShellGame-v0"
    instruction = "Lift the cup that hides the ball."
    others = ("ball",)
    hands = ("left_hand", "right_hand")
    steps_per_choice = 60
    dials = {"cups": (3, 3), "swaps": (1, 2)}  # noqa: RUF012

    def __init__(self, *, cups: Span = dials["cups"], swaps: Span = dials["swaps"]) -> None:
        fewest, most = check_span("cups", cups, min(ROWS), max(ROWS))
        self.candidates = tuple(f"cup_{number}" for number in range(most))
        super().__init__(cups=(fewest, most))
        self._swaps = check_span("swaps", swaps, 0, 8)
        self._grips: dict[str, Array] = {}

    def possible_with(self, drawn: Mapping[str, int]) -> tuple[Answer, ...]:
        """Return an answer for each cup."""
        return tuple(range(drawn["cups"]))

    @property
    def present(self) -> tuple[str, ...]:
        """The cups of this episode."""
        return self.candidates[: self.drawn["cups"]]

    def build(self, spec: mujoco.MjSpec) -> None:
        """Add cups, a ball and two hands."""
        for cup in self.candidates:
            add_cup(spec, cup)
        add_ball(spec, "ball")
        add_hand(spec, "left_hand", mirrored=True)
        add_hand(spec, "right_hand")

    def layout(self, rng: np.random.Generator) -> dict[str, Pose]:
        """Return cups in a row with some disorder.

        The ball waits next to them until the script puts it under one.
        """
        homes = in_a_row(self.present, rng, **ROWS[len(self.present)])
        homes["ball"] = Pose(np.array([0.80, 0.0, BALL_RADIUS]), np.eye(3))
        return homes

    def choreograph(self, z: Answer, homes: dict[str, Pose], rng: np.random.Generator) -> Script:
        """Show the ball, swap cups, leave.

        The swaps are drawn first: z decides only where the ball begins.
        """
        places = range(len(self.present))
        pairs = sorted(combinations(places, 2), key=lambda pair: pair[1] - pair[0])
        swaps = [
            pairs[rng.integers(len(pairs))]
            for _ in range(rng.integers(self._swaps[0], self._swaps[1] + 1))
        ]
        self.difficulty = {"swaps": len(swaps)}
        assert isinstance(z, int)
        start = z
        for pair in reversed(swaps):
            start = {pair[0]: pair[1], pair[1]: pair[0]}.get(start, start)
        self._grips = {
            "left_hand": vary_grip(rng) @ LEFT_GRIP,
            "right_hand": vary_grip(rng) @ RIGHT_GRIP,
        }
        scene = self.new_choreography(homes)
        cup_at = list(self.present)
        covered = cup_at[start]
        self._put_ball_under(scene, covered)
        self._show_ball(scene, covered)
        for left_in_front, pair in zip(rng.random(len(swaps)) < 0.5, swaps, strict=True):
            self._swap(scene, cup_at, pair, bool(left_in_front), covered)
        scene.move(3, {hand: drawn_back(scene.where(hand)) for hand in self.hands})
        scene.move(4, {hand: self._away(hand) for hand in self.hands})
        return scene.script()

    def _put_ball_under(self, scene: Choreography, cup: str) -> None:
        x, y, _ = scene.where(cup).position
        scene.put("ball", Pose(np.array([x, y, scene.where("ball").position[2]]), np.eye(3)))

    def _show_ball(self, scene: Choreography, cup: str) -> None:
        home = scene.where(cup)
        middle = scene.where(self.present[(len(self.present) - 1) // 2])
        hand = "left_hand" if home.position[1] < middle.position[1] + 0.01 else "right_hand"
        grip = self._grip(home, hand)
        idle = next(other for other in self.hands if other != hand)
        scene.move(
            5,
            {
                hand: drawn_back(grip),
                idle: Pose(np.array([0.86, 1.5 * OUTSIDE[idle], 0.10]), self._grips[idle]),
            },
        )
        scene.move(2, {hand: grip})
        scene.move(3, {hand: grip.translated(0, 0, 0.13)}, carry={hand: (cup,)})
        scene.wait(3)
        scene.highlight()
        scene.move(3, {hand: grip}, carry={hand: (cup,)})
        scene.put(cup, home)
        scene.move(2, {hand: drawn_back(grip)})

    def _swap(
        self,
        scene: Choreography,
        cup_at: list[str],
        pair: tuple[int, int],
        left_in_front: bool,
        covered: str,
    ) -> None:
        """Let both hands take a cup each and slide them past one another, the ball with its cup."""
        cups = {"left_hand": cup_at[pair[0]], "right_hand": cup_at[pair[1]]}
        starts = {hand: scene.where(cup) for hand, cup in cups.items()}
        # Each end is the other cup's own pose: swaps change no position, to the last bit.
        ends = {"left_hand": starts["right_hand"], "right_hand": starts["left_hand"]}
        apart, crowded = pair[1] - pair[0], len(self.present) > FEW
        bow = np.array([BOW[apart] if crowded else BOW[1], 0, 0]) * (1 if left_in_front else -1)
        steps = SWAP_STEPS + 3 * max(0, apart - 2)
        scene.move(
            4,
            {hand: self._grip(start, hand) for hand, start in starts.items()},
            arc=dict.fromkeys(self.hands, AROUND) if crowded else None,
        )
        scene.move(
            steps,
            {hand: self._grip(end, hand) for hand, end in ends.items()},
            carry={hand: (cup, "ball") if cup == covered else (cup,) for hand, cup in cups.items()},
            arc={"left_hand": bow, "right_hand": -bow},
        )
        scene.highlight(steps_ago=steps // 2)
        for hand, cup in cups.items():
            scene.put(cup, ends[hand])
        self._put_ball_under(scene, covered)
        cup_at[pair[0]], cup_at[pair[1]] = cup_at[pair[1]], cup_at[pair[0]]
        scene.move(2, {hand: drawn_back(self._grip(end, hand)) for hand, end in ends.items()})

    def _grip(self, cup: Pose, hand: str) -> Pose:
        """Return the pose of a hand that holds a cup."""
        return Pose(cup.position + (0, 0, GRIP), self._grips[hand])

    def _away(self, hand: str) -> Pose:
        return Pose(AWAY + (0, OUTSIDE[hand], 0), self._grips[hand])

    def hidden(self, world: World) -> set[str]:
        """Return parked cups, and the ball while a cup stands over it."""
        hidden, ball = super().hidden(world), world.position("ball")
        for cup in self.present:
            pose = world.pose(cup)
            local = pose.rotation.T @ (ball - pose.position)
            if np.hypot(local[0], local[1]) < CUP_RIM and local[2] > 0:
                return {*hidden, "ball"}
        return hidden

    def watch(self, world: World) -> None:
        """Note handling and lifts of the cups."""
        touching = world.touching()
        for cup in self.present:
            self.note_handling(world, touching, cup)
            held = frozenset(("gripper", cup)) in touching
            if held and world.position(cup)[2] - self._homes[cup].position[2] >= LIFT:
                self.note("lifted", cup)

    def finished(self, step: int) -> bool:
        """Return true shortly after the lift, or at once when a cup was set down again.

        The delay shows a second cup or a fall.
        """
        events = self.events
        if (
            any(happened(events, kind) for kind in ("toppled", "dropped", "lowered"))
            or len(names(events, "raised")) > 1
        ):
            return True
        lifts = [event.step for event in events if event.kind == "lifted"]
        return bool(lifts) and step >= lifts[0] + 3

    def judge(self, events: Sequence[Event]) -> Verdict:
        """Return the choice if exactly one cup was lifted and is held, and the others stand.

        A policy that looks under a second cup needs no memory.
        """
        lifted, raised = names(events, "lifted"), names(events, "raised")
        if len(raised) > 1:
            return Verdict(None, f"two cups: {', '.join(raised)} were raised")
        if lifted and not any(happened(events, kind) for kind in ("toppled", "dropped", "lowered")):
            return Verdict(self.candidates.index(lifted[0]))
        if reason := failure(events, "a cup"):
            return Verdict(None, reason)
        if happened(events, "lowered"):
            return Verdict(
                None,
                f"set down: {', '.join(names(events, 'lowered'))} was raised, but not high enough",
            )
        return Verdict(None, "timeout: no cup was lifted")
