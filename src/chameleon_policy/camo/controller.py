"""From an absolute tool pose to joint targets: checks, limits, damped least squares.

An action has ten numbers: position (3, metres, base frame), rotation (6, the first two columns of
the tool's rotation matrix) and gripper (1: 1 is open, 0 is closed). Proprioception has the same
ten, as measured.
"""

from __future__ import annotations

from dataclasses import dataclass

import mujoco
import numpy as np
import numpy.typing as npt

from chameleon_policy.camo.geometry import (
    Array,
    Pose,
    rotation_about,
    rotation_from_six,
    rotation_to_six,
    rotation_vector,
)
from chameleon_policy.camo.robot import DECISION_JOINTS, DECISION_POSE, JOINT_LIMIT, JOINTS

ACTION_NAMES = ("x", "y", "z", "r11", "r21", "r31", "r12", "r22", "r32", "gripper")
WORKSPACE_LOW, WORKSPACE_HIGH = np.array([0.25, -0.36, 0.008]), np.array([0.74, 0.36, 0.50])
"""Positions outside are moved to the nearest point inside."""
LARGEST_TILT = 1.4
"""Largest angle (rad) of the tool from straight down; a larger tilt is reduced to it."""
JOINT_STEP = 0.42
"""Largest joint motion in one control step (rad): the UR5e's 180 degrees a second."""
WAITING_BALL, WAITING_TILT = 0.03, 0.15
"""Before the decision the tool stays this close (m, rad) to the decision pose."""


@dataclass(frozen=True)
class Command:
    """Checked action: the tool's target at the end of the control step."""

    pose: Pose
    gripper: float
    clamped: bool
    """Whether anything was moved into its limits."""


def pose_to_action(pose: Pose, gripper: float) -> Array:
    """Return the ten numbers (10,) of a tool pose and a gripper opening."""
    return np.concatenate([pose.position, rotation_to_six(pose.rotation), [gripper]])


def read_action(action: npt.ArrayLike) -> Command:
    """Check an action and move it into the workspace.

    Refused with a ValueError: another shape than (10,), numbers that are not finite, six rotation
    numbers without a frame. Clamped: positions outside the workspace, tilts beyond `LARGEST_TILT`,
    gripper outside 0..1. Rotations that are not orthonormal are made so by Gram-Schmidt.
    """
    numbers = np.asarray(action, float)
    if numbers.shape != (len(ACTION_NAMES),):
        raise ValueError(
            f"an action has {len(ACTION_NAMES)} numbers ({', '.join(ACTION_NAMES)}), "
            f"got an array of shape {numbers.shape}"
        )
    if not np.isfinite(numbers).all():
        bad = [
            name
            for name, number in zip(ACTION_NAMES, numbers, strict=True)
            if not np.isfinite(number)
        ]
        raise ValueError(
            f"an action must be finite, got {', '.join(bad)} = NaN or infinite: {numbers.tolist()}"
        )
    position = np.clip(numbers[:3], WORKSPACE_LOW, WORKSPACE_HIGH)
    rotation, tilted = _limit_turn(rotation_from_six(numbers[3:9]), LARGEST_TILT)
    gripper = float(np.clip(numbers[9], 0.0, 1.0))
    clamped = tilted or gripper != numbers[9] or bool((position != numbers[:3]).any())
    return Command(Pose(position, rotation), gripper, clamped)


def keep_waiting(command: Command) -> Command:
    """Return the command executed before the decision: close to the decision pose, gripper open."""
    offset = command.pose.position - DECISION_POSE.position
    distance = float(np.linalg.norm(offset))
    shrink = min(1.0, WAITING_BALL / max(distance, 1e-9))
    turn = rotation_vector(command.pose.rotation @ DECISION_POSE.rotation.T)
    angle = float(np.linalg.norm(turn))
    rotation = command.pose.rotation
    if angle > WAITING_TILT:
        rotation = rotation_about(turn, WAITING_TILT) @ DECISION_POSE.rotation
    clamped = command.clamped or shrink < 1.0 or angle > WAITING_TILT or command.gripper < 1.0
    return Command(Pose(DECISION_POSE.position + shrink * offset, rotation), 1.0, clamped)


def _limit_turn(rotation: Array, limit: float) -> tuple[Array, bool]:
    """Turn the tool's z axis back towards straight down until its tilt is within the limit."""
    axis = rotation[:, 2]
    tilt = float(np.arccos(np.clip(-axis[2], -1, 1)))
    if tilt <= limit:
        return rotation, False
    about = np.cross(axis, (0.0, 0.0, -1.0))
    if np.linalg.norm(about) < 1e-6:
        about = rotation[:, 1]
    return rotation_about(about, tilt - limit) @ rotation, True


class InverseKinematics:
    """Damped least squares from the joint targets of the last command.

    The arm therefore never jumps to another branch.
    """

    iterations, damping = 12, 1e-3

    def __init__(self, model: mujoco.MjModel) -> None:
        self._model = model
        # kinematics only: the simulation's own data are never touched
        self._data = mujoco.MjData(model)
        self._site = model.site("tcp").id
        self._addresses = np.array([model.joint(name).qposadr[0] for name in JOINTS])
        self._dofs = np.array([model.joint(name).dofadr[0] for name in JOINTS])
        self._jacobian = np.zeros((6, model.nv))
        self.joints = DECISION_JOINTS.copy()
        self.falls_short = False
        """Whether the last pose could not be reached in one control step: too far, or against a
        joint's limit.
        """
        self.rest = self.solve(DECISION_POSE, iterations=100)
        """Joint angles of the decision pose."""

    def reset(self) -> None:
        """Start again at the decision pose."""
        self.joints = self.rest.copy()

    def solve(self, pose: Pose, iterations: int | None = None) -> Array:
        """Return joint targets (6,) for a pose, at most `JOINT_STEP` from the last ones.

        If the pose is out of reach, the nearest that the arm can take.
        """
        start, joints = self.joints, self.joints.copy()
        for _ in range(iterations or self.iterations):
            error = self._error(joints, pose)
            if np.abs(error).max() < 1e-6:
                break
            jacobian = self._jacobian[:, self._dofs]
            step = jacobian.T @ np.linalg.solve(
                jacobian @ jacobian.T + self.damping * np.eye(6), error
            )
            joints = np.clip(joints + np.clip(step, -0.3, 0.3), -JOINT_LIMIT, JOINT_LIMIT)
        if iterations is None:
            largest = float(np.abs(joints - start).max())
            joints = start + (joints - start) * min(1.0, JOINT_STEP / max(largest, 1e-9))
        error = self._error(joints, pose)
        self.falls_short = bool(np.linalg.norm(error[:3]) > 0.01 or np.linalg.norm(error[3:]) > 0.1)
        self.joints = joints
        return joints

    def _error(self, joints: Array, pose: Pose) -> Array:
        data = self._data
        data.qpos[self._addresses] = joints
        mujoco.mj_kinematics(self._model, data)
        mujoco.mj_comPos(self._model, data)
        mujoco.mj_jacSite(self._model, data, self._jacobian[:3], self._jacobian[3:], self._site)
        rotation = data.site_xmat[self._site].reshape(3, 3)
        return np.concatenate(
            [
                pose.position - data.site_xpos[self._site],
                rotation_vector(pose.rotation @ rotation.T),
            ]
        )
