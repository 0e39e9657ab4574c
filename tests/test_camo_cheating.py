"""Ways to score without memory or without the manipulation, played in simulation: none counts."""

from __future__ import annotations

import numpy as np
import pytest

from chameleon_policy.camo import CamoEnv, Score
from chameleon_policy.camo.experts.clean_plate import CleanPlateExpert
from chameleon_policy.camo.experts.expert import CLOSED, OPEN, Expert, Waypoint
from chameleon_policy.camo.experts.pantry import PantryExpert
from chameleon_policy.camo.experts.seasonings import GRIP, SeasoningsExpert
from chameleon_policy.camo.experts.shell_game import ShellGameExpert
from chameleon_policy.camo.geometry import Pose, rotation_about
from chameleon_policy.camo.robot import DECISION_POSE, DOWNWARD


def play(kind: type[Expert], task: str, z: object) -> tuple[Score, CamoEnv]:
    """Let an expert of this kind play an episode."""
    env = CamoEnv(task, observation="state", retention_steps=0)
    env.reset(seed=12, options={"z": z})
    expert, over = kind(env, noise=0.0), False
    while not over:
        _, _, terminated, truncated, _ = env.step(expert.act().executed)
        over = terminated or truncated
    return env.score(), env


class Peeker(ShellGameExpert):
    """Expert that looks under the leftmost cup before it lifts the correct one."""

    def plan(self, decision: int) -> list[Waypoint]:
        env = self.env
        cups = sorted(env.task.candidates, key=lambda name: env.world.position(name)[1])
        look = self.grasp(cups[0], 0.072, 0.2)
        held = look[-1].pose
        return [
            *look,
            Waypoint(held.translated(0, 0, 0.06), CLOSED),
            Waypoint(held, CLOSED),
            Waypoint(held, OPEN, stay=2, tolerance=0.02),
            Waypoint(held.translated(0, 0, 0.12), OPEN),
            *super().plan(decision),
        ]


@pytest.mark.parametrize("z", [0, 2])
def test_looking_under_a_cup_first(z: int) -> None:
    score, _ = play(Peeker, "shell-game", z)
    assert not score.manipulation and score.reason.split(":")[0] in ("set down", "two cups"), score


class Slider(PantryExpert):
    """Expert that slides the leftmost cup aside, and back when it has seen what is under it."""

    def plan(self, decision: int) -> list[Waypoint]:
        cups = sorted(self.env.task.present, key=lambda name: self.env.world.position(name)[1])
        look = self.grasp(cups[0], 0.072, 0.2)
        held = look[-1].pose
        return [
            *look,
            Waypoint(held.translated(-0.06, 0, 0), CLOSED, speed=0.02),
            Waypoint(held, CLOSED, speed=0.02),
            Waypoint(held, OPEN, stay=2, tolerance=0.02),
            Waypoint(held.translated(0, 0, 0.12), OPEN),
            *super().plan(decision),
        ]


def test_sliding_a_cup_aside_to_look() -> None:
    score, _ = play(Slider, "pantry", (3, 4))
    assert not score.manipulation and score.reason.startswith("pushed away: cup_0"), score


class SecondLook(PantryExpert):
    """Expert that lifts two cups before it returns for the next question."""

    def plan(self, decision: int) -> list[Waypoint]:
        cups = sorted(self.env.task.present, key=lambda name: self.env.world.position(name)[1])
        first, *rest = self.grasp(cups[0], 0.072, 0.2)
        held = rest[-1].pose
        *way, _, _ = super().plan(decision)
        return [*way, first, *rest, Waypoint(held.translated(0, 0, 0.15), CLOSED)]


def test_lifting_a_second_cup() -> None:
    score, env = play(SecondLook, "pantry", (3, 4))
    assert not score.manipulation and score.reason == "two cups: cup_3, cup_0 were raised", score
    assert len(env.decisions) == 1


class IntoTheBowl(SeasoningsExpert):
    """Expert that leaves the shaker in the bowl."""

    def plan(self, decision: int) -> list[Waypoint]:
        *way, _, _, _, _, _, _, back = super().plan(decision)
        bowl = self.env.world.position("bowl")
        inside = Pose(np.array([bowl[0], bowl[1], GRIP + 0.036]), DOWNWARD)
        return [
            *way,
            Waypoint(inside, CLOSED, speed=0.03, tolerance=0.008),
            Waypoint(inside, OPEN, stay=2, tolerance=0.02),
            Waypoint(inside.translated(0, 0, 0.1), OPEN),
            back,
        ]


def test_leaving_the_shaker_in_the_bowl() -> None:
    score, env = play(IntoTheBowl, "seasonings", (1, 0, 2))
    assert not score.manipulation and len(env.decisions) == 1, env.events
    assert score.reason.split(":")[0] in ("not put back", "dropped", "toppled"), score


class NoReturn(SeasoningsExpert):
    """Expert that takes all shakers without returning to the decision pose between them."""

    def plan(self, decision: int) -> list[Waypoint]:
        ways = [super(NoReturn, self).plan(number) for number in range(3)]
        return [waypoint for way in ways for waypoint in way[:-2]] + [
            Waypoint(DECISION_POSE, OPEN, tolerance=0.004)
        ]


def test_leaving_out_decisions() -> None:
    score, _ = play(NoReturn, "seasonings", (0, 1, 2))
    assert not score.manipulation and score.reason.startswith("two shakers before returning"), score


class HalfShakes(SeasoningsExpert):
    """Expert that strokes once, puts the shaker back and does it again: two strokes, no shake."""

    def plan(self, decision: int) -> list[Waypoint]:
        way = super().plan(decision)
        shakes = [index for index, waypoint in enumerate(way) if waypoint.pose.rotation[0, 2] > 0.2]
        assert len(shakes) == 4
        once = [waypoint for index, waypoint in enumerate(way) if index not in shakes[2:]]
        return [*once[:-2], *once]


def test_strokes_of_two_picks_do_not_add_up() -> None:
    score, env = play(HalfShakes, "seasonings", (0, 1, 2))
    assert not score.manipulation and not any(event.kind == "shaken" for event in env.events), (
        env.events
    )


class EdgeWiper(CleanPlateExpert):
    """Expert that holds the sponge tilted, so that only its edge touches the plate."""

    def plan(self, decision: int) -> list[Waypoint]:
        way = super().plan(decision)
        grasped = next(index for index, waypoint in enumerate(way) if waypoint.gripper == CLOSED)
        tilted = rotation_about((1, 0, 0), 0.6) @ DOWNWARD
        return [
            *way[: grasped + 1],
            *(
                Waypoint(
                    Pose(each.pose.position + (0, 0, 0.004), tilted),
                    CLOSED,
                    speed=each.speed,
                    tolerance=each.tolerance,
                )
                for each in way[grasped + 1 :]
            ),
        ]


def test_wiping_with_an_edge() -> None:
    score, env = play(EdgeWiper, "clean-plate", 1)
    assert not score.manipulation, score
    assert max(env.task.coverage(plate) for plate in env.task.candidates) < 0.3
