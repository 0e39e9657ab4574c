"""Scripted experts on privileged state: waypoints, human-like variation, noise with clean labels.

An expert waits at the decision pose until t_d. From then on it moves along waypoints. Its executed
actions are disturbed, also while it waits; its labels are the undisturbed actions that lead back to
its path from the arm's real pose (DART). Otherwise a policy learns to read its own drift as
evidence.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from chameleon_policy.camo.controller import pose_to_action
from chameleon_policy.camo.env import CamoEnv, describe_answers
from chameleon_policy.camo.geometry import Array, Pose, rotation_about, rotation_vector
from chameleon_policy.camo.robot import DECISION_POSE, DOWNWARD
from chameleon_policy.camo.tasks import Answer
from chameleon_policy.seeds import stream

OPEN, CLOSED = 1.0, 0.0
RETURNING = rotation_about((0, 0, 1), 0.5) @ DOWNWARD
"""On the way back the tool is turned about the vertical: putting something back looks different
from taking it, so that only the choice needs memory, not the manipulation.
"""
TURN = 0.22
"""Largest rotation in one control step (rad)."""
NOISE_POSITION, NOISE_TURN, NOISE_MEMORY = 0.0045, 0.02, 0.6
"""Disturbance: standard deviations (m, rad) of each step's push, and the share of the last one that
stays.
"""


@dataclass(frozen=True)
class Waypoint:
    """Waypoint of the tool."""

    pose: Pose
    gripper: float
    speed: float = 0.055
    """Metres per control step."""
    tolerance: float = 0.012
    """Distance (m) at which it counts as reached."""
    stay: int = 0
    """Control steps to remain after arriving."""
    noise: float = 1.0
    """Share of the disturbance on the way there: less where objects are gripped or put down."""


@dataclass(frozen=True)
class Demonstrated:
    """Step of a demonstration."""

    action: Array
    """The clean action: the label."""
    executed: Array
    """The action sent to the arm."""


class Expert(ABC):
    """Expert for one episode, with its own variation; made after the environment's `reset`."""

    def __init__(
        self, env: CamoEnv, *, noise: float = 1.0, wrong_choice: Answer | None = None
    ) -> None:
        if wrong_choice is not None and wrong_choice not in env.task.possible:
            answers = describe_answers(env.task.possible)
            raise ValueError(
                f"{env.task.name} has no answer {wrong_choice!r} to choose wrongly; "
                f"it has {answers}"
            )
        self.env, self._noise, self._wrong_choice = env, noise, wrong_choice
        self._rng = stream(env.seed, "expert")
        self._noise_rng = stream(env.seed, "noise")
        self._push = np.zeros(6)
        self.pace = self._rng.uniform(0.8, 1.2)
        self.posture = rotation_about((0, 0, 1), self._rng.uniform(-0.1, 0.1)) @ DOWNWARD
        self._plan: list[Waypoint] = []
        self._planned = 0
        self._stayed = 0

    @property
    def choice(self) -> Answer:
        """The expert's answer: z, or the wrong choice that was asked for."""
        return self.env.z if self._wrong_choice is None else self._wrong_choice

    @abstractmethod
    def plan(self, decision: int) -> list[Waypoint]:
        """Return the waypoints after the decision with this index."""

    def act(self) -> Demonstrated:
        """Return the label and the executed action for the current observation."""
        if len(self.env.decisions) > self._planned:
            hesitation = Waypoint(
                DECISION_POSE, OPEN, stay=int(self._rng.integers(0, 2)), tolerance=0.05
            )
            self._plan = [hesitation, *self.plan(self._planned)]
            self._planned, self._stayed = len(self.env.decisions), 0
        goal = self._current()
        tool = self.env.world.tool()
        offset = goal.pose.position - tool.position
        step = min(1.0, goal.speed * self.pace / max(float(np.linalg.norm(offset)), 1e-9))
        turn = rotation_vector(goal.pose.rotation @ tool.rotation.T)
        angle = float(np.linalg.norm(turn))
        rotation = goal.pose.rotation
        if angle > TURN:
            rotation = rotation_about(turn, TURN) @ tool.rotation
        clean = Pose(tool.position + step * offset, rotation)
        return Demonstrated(pose_to_action(clean, goal.gripper), self._disturb(clean, goal))

    def _current(self) -> Waypoint:
        """Return the next waypoint; drop those that are reached."""
        tool = self.env.world.tool()
        while self._plan:
            goal = self._plan[0]
            near = np.linalg.norm(goal.pose.position - tool.position) <= goal.tolerance
            turned = np.linalg.norm(rotation_vector(goal.pose.rotation @ tool.rotation.T)) <= 0.08
            if not (near and turned) and not self._stayed:
                return goal
            if self._stayed < goal.stay:
                self._stayed += 1
                return goal
            if len(self._plan) == 1:
                return goal
            self._plan.pop(0)
            self._stayed = 0
        return Waypoint(DECISION_POSE, OPEN)

    def _disturb(self, clean: Pose, goal: Waypoint) -> Array:
        # One draw in every step: the disturbance before t_d must not depend on z.
        spread = np.repeat([NOISE_POSITION, NOISE_TURN], 3)
        self._push = NOISE_MEMORY * self._push + spread * self._noise_rng.standard_normal(6)
        push = self._noise * goal.noise * self._push
        turned = clean.rotation
        if np.linalg.norm(push[3:]) > 0:
            turned = rotation_about(push[3:], float(np.linalg.norm(push[3:]))) @ turned
        return pose_to_action(Pose(clean.position + push[:3], turned), goal.gripper)

    def wobble(self, size: float) -> Array:
        """Return a small random offset (3,), for detours and inexact grasps."""
        return self._rng.uniform(-size, size, 3)

    def over(
        self, position: Array, height: float, detour: float = 0.0, rotation: Array | None = None
    ) -> Pose:
        """Return a tool pose above a point of the table, perhaps a little next to it.

        The rotation is the expert's own posture by default.
        """
        where = np.array([position[0], position[1], height]) + self.wobble(detour)
        return Pose(where, self.posture if rotation is None else rotation)

    def grasp(self, name: str, grip: float, above: float) -> list[Waypoint]:
        """Return waypoints that approach an object from above and grip it."""
        position = self.env.world.position(name)
        hold = np.array([position[0], position[1], position[2] + grip]) + self.wobble(0.003)
        down = Pose(hold, self.posture)
        return [
            Waypoint(self.over(position, above, 0.02), OPEN, speed=0.075, tolerance=0.03),
            Waypoint(self.over(position, above - 0.03, 0.004), OPEN, tolerance=0.010, noise=0.5),
            Waypoint(down, OPEN, speed=0.045, tolerance=0.006, noise=0.3),
            Waypoint(down, CLOSED, tolerance=0.02, stay=2, noise=0.2),
        ]
