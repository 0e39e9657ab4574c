"""The simulated world: a compiled scene with the robot in it.

It has two regimes. While the hands act, every object is `pinned`: weightless, without contacts,
exactly at its pose in the script. From the decision on it is free: only contacts and gravity move
it.
"""

from __future__ import annotations

from collections.abc import Iterable

import mujoco
import numpy as np

from chameleon_policy.camo.controller import Command, InverseKinematics
from chameleon_policy.camo.geometry import Array, Pose, quaternion, rotation_from_quaternion
from chameleon_policy.camo.robot import JOINTS, OPENING

SUBSTEPS = 64
"""Physics steps in one control step: 64 / 480 s, which is 7.5 Hz."""
RAMP = 8
"""A joint target is approached in this many equal parts of a control step, so that the servos see
no jumps.
"""
CONTROL_HZ = 7.5
FINGERS = ("left_finger", "right_finger")


class World:
    """Model and data of one task, with the robot's controller."""

    def __init__(self, spec: mujoco.MjSpec, objects: Iterable[str]) -> None:
        self.model = spec.compile()
        self.data = mujoco.MjData(self.model)
        self.objects = tuple(objects)
        self.kinematics = InverseKinematics(self.model)
        model = self.model
        self._qpos = {name: int(model.joint(name).qposadr[0]) for name in self.objects}
        self._dof = {name: int(model.joint(name).dofadr[0]) for name in self.objects}
        self._body = {name: model.body(name).id for name in self.objects}
        self._arm = np.array([model.joint(name).qposadr[0] for name in JOINTS])
        self._fingers = np.array([model.joint(name).qposadr[0] for name in FINGERS])
        self._controls = np.array([model.actuator(name).id for name in (*JOINTS, *FINGERS)])
        self._tcp = model.site("tcp").id
        # Bodies below an object (the pad of a sponge) belong to it.
        self._owner: dict[int, str] = {}
        roots = {body: name for name, body in self._body.items()}
        for body in range(model.nbody):
            root = int(model.body_rootid[body])
            if root in roots:
                self._owner[body] = roots[root]
        self._gripper_bodies = {model.body(name).id for name in ("gripper", *FINGERS)}
        self._object_bodies = np.array(sorted(self._owner))

    def reset(self, homes: dict[str, Pose]) -> None:
        """Move the arm to its decision pose, gripper open, and objects to their homes."""
        mujoco.mj_resetData(self.model, self.data)
        self.kinematics.reset()
        self.data.qpos[self._arm] = self.kinematics.rest
        self.data.qpos[self._fingers] = OPENING / 2
        self.data.ctrl[self._controls] = [*self.kinematics.rest, OPENING / 2, OPENING / 2]
        for name, pose in homes.items():
            self.place(name, pose)
        mujoco.mj_forward(self.model, self.data)

    def settle(self, seconds: float = 0.4) -> dict[str, Pose]:
        """Let objects come to rest under gravity; return their poses."""
        mujoco.mj_step(self.model, self.data, nstep=round(seconds / self.model.opt.timestep))
        return {name: self.pose(name) for name in self.objects}

    def pin(self) -> None:
        """Make objects weightless and without contacts, until `free`."""
        self.model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_CONTACT
        self.model.body_gravcomp[self._object_bodies] = 1.0

    def free(self) -> None:
        """Let physics alone move the objects."""
        self.model.opt.disableflags &= ~int(mujoco.mjtDisableBit.mjDSBL_CONTACT)
        self.model.body_gravcomp[self._object_bodies] = 0.0

    def place(self, name: str, pose: Pose) -> None:
        """Put an object at a pose, at rest."""
        address, dof = self._qpos[name], self._dof[name]
        self.data.qpos[address : address + 3] = pose.position
        self.data.qpos[address + 3 : address + 7] = quaternion(pose.rotation)
        self.data.qvel[dof : dof + 6] = 0.0

    def place_scenery(self, name: str, pose: Pose) -> None:
        """Put a hand, or something else without contacts, at a pose."""
        index = int(self.model.body_mocapid[self.model.body(name).id])
        self.data.mocap_pos[index] = pose.position
        self.data.mocap_quat[index] = quaternion(pose.rotation)

    def hand(self, name: str) -> Pose:
        """Return the pose of a hand."""
        index = int(self.model.body_mocapid[self.model.body(name).id])
        return Pose(
            self.data.mocap_pos[index].copy(), rotation_from_quaternion(self.data.mocap_quat[index])
        )

    def refresh(self) -> None:
        """Update everything derived (frames, contacts) after placing things."""
        mujoco.mj_forward(self.model, self.data)

    def step(self, command: Command) -> None:
        """Simulate one control step towards a command."""
        target = np.append(self.kinematics.solve(command.pose), [command.gripper * OPENING / 2] * 2)
        start = self.data.ctrl[self._controls].copy()
        start[6:] = target[6:]  # fingers are limited by their force, not by a ramp
        for part in range(1, RAMP + 1):
            self.data.ctrl[self._controls] = start + (target - start) * part / RAMP
            mujoco.mj_step(self.model, self.data, nstep=SUBSTEPS // RAMP)
        mujoco.mj_kinematics(self.model, self.data)

    @property
    def diverged(self) -> bool:
        """Whether MuJoCo had to reset an unstable simulation."""
        bad = (
            mujoco.mjtWarning.mjWARN_BADQPOS,
            mujoco.mjtWarning.mjWARN_BADQVEL,
            mujoco.mjtWarning.mjWARN_BADQACC,
        )
        return any(self.data.warning[kind].number for kind in bad)

    def pose(self, name: str) -> Pose:
        """Return the pose of an object."""
        address = self._qpos[name]
        return Pose(
            self.data.qpos[address : address + 3].copy(),
            rotation_from_quaternion(self.data.qpos[address + 3 : address + 7]),
        )

    def position(self, name: str) -> Array:
        """Return the position (3,) of an object's origin."""
        return np.array(self.data.qpos[self._qpos[name] : self._qpos[name] + 3])

    def tilt(self, name: str) -> float:
        """Return the angle (rad) between an object's axis and the vertical."""
        return float(np.arccos(np.clip(self.pose(name).rotation[2, 2], -1, 1)))

    def tool(self) -> Pose:
        """Return the measured pose of the tool centre point."""
        return Pose(
            self.data.site_xpos[self._tcp].copy(),
            self.data.site_xmat[self._tcp].reshape(3, 3).copy(),
        )

    def gripper(self) -> float:
        """Return the measured opening: 1 is open, 0 is closed."""
        return float(np.clip(self.data.qpos[self._fingers].sum() / OPENING, 0.0, 1.0))

    def touching(self) -> set[frozenset[str]]:
        """Return the pairs in contact: names of objects, `gripper` and `table`."""
        model, pairs = self.model, set()
        for contact in self.data.contact[: self.data.ncon]:
            if contact.exclude == 0:
                pairs.add(
                    frozenset(self._name(int(model.geom_bodyid[geom])) for geom in contact.geom)
                )
        return pairs

    def state(self) -> Array:
        """Return the physical state, with the solver's warm start: equal states, equal futures."""
        kind = mujoco.mjtState.mjSTATE_INTEGRATION
        state = np.empty(mujoco.mj_stateSize(self.model, kind))
        mujoco.mj_getState(self.model, self.data, state, kind)
        return np.concatenate([state, self.kinematics.joints])

    def restore(self, state: Array) -> None:
        """Return to a state."""
        joints = len(JOINTS)
        mujoco.mj_setState(
            self.model, self.data, state[:-joints], mujoco.mjtState.mjSTATE_INTEGRATION
        )
        self.kinematics.joints = state[-joints:].copy()
        mujoco.mj_forward(self.model, self.data)

    def _name(self, body: int) -> str:
        if body in self._gripper_bodies:
            return "gripper"
        return self._owner.get(body, "table")
