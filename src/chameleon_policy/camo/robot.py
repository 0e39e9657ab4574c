"""A UR5e from its published Denavit-Hartenberg parameters, with a parallel gripper like a Hand-E.

Link i turns about the z axis of DH frame i - 1; its body is that frame after the turn, so that the
next body is at (a_i, 0, d_i), turned by alpha_i about x. Geoms are primitives. The base frame is
the world frame.

The tool centre point (site `tcp`) lies between the finger tips: z points out of the gripper, the
fingers open along y. Only the gripper has contacts; every robot body is gravity compensated.
"""

from __future__ import annotations

import mujoco
import numpy as np

from chameleon_policy.camo.geometry import Pose, quaternion, rotation_about

JOINTS = ("shoulder_pan", "shoulder_lift", "elbow", "wrist_1", "wrist_2", "wrist_3")
# a (m), d (m), alpha (rad) as Universal Robots publishes them for the UR5e.
DENAVIT_HARTENBERG = (
    (0.0, 0.1625, np.pi / 2),
    (-0.425, 0.0, 0.0),
    (-0.3922, 0.0, 0.0),
    (0.0, 0.1333, np.pi / 2),
    (0.0, 0.0997, -np.pi / 2),
    (0.0, 0.0996, 0.0),
)
JOINT_LIMIT = 2 * np.pi
TOOL_LENGTH = 0.16
"""From the flange to the tool centre point."""
OPENING = 0.11
"""Distance of the open finger pads: wider than the 50 mm of a Hand-E, for larger objects."""

DOWNWARD = np.diag([1.0, -1.0, -1.0])
"""The tool points at the table, x ahead."""
DECISION_POSE = Pose(np.array([0.40, 0.0, 0.30]), DOWNWARD)
"""Pose of the arm while the hand shows the evidence, and at every decision."""
DECISION_JOINTS = np.array([2.7623, -1.9385, 1.7836, -1.4159, -1.5708, -1.9501])
"""Joint angles near the decision pose, elbow up; inverse kinematics starts here."""

STIFFNESS = (4000.0, 4000.0, 4000.0, 1200.0, 1200.0, 1200.0)
DAMPING = (200.0, 200.0, 200.0, 30.0, 30.0, 30.0)
TORQUE = (150.0, 150.0, 150.0, 28.0, 28.0, 28.0)
"""The UR5e's own limits."""
GRIP_FORCE = 40.0
"""Newton per finger."""

TABLE_BIT, GRIPPER_BIT, OBJECT_BIT = 1, 2, 4
"""Contact bits (`contype` and `conaffinity`)."""

STEEL = (0.62, 0.64, 0.67, 1)
SHELL = (0.86, 0.87, 0.88, 1)
CAP = (0.33, 0.55, 0.74, 1)
DARK = (0.16, 0.17, 0.19, 1)

Triple = tuple[float, float, float]
Colour = tuple[float, float, float, float]

CYLINDER, CAPSULE, BOX = (
    mujoco.mjtGeom.mjGEOM_CYLINDER,
    mujoco.mjtGeom.mjGEOM_CAPSULE,
    mujoco.mjtGeom.mjGEOM_BOX,
)


def add_robot(spec: mujoco.MjSpec) -> None:
    """Add arm, gripper, wrist camera and actuators: six joint angles and two finger openings."""
    base = spec.worldbody.add_body(name="base")
    _visual(base, CYLINDER, size=(0.085, 0.03, 0), pos=(0, 0, 0.03), rgba=STEEL)
    body, link = base, (0.0, 0.0, 0.0)
    for index, (name, frame) in enumerate(zip(JOINTS, DENAVIT_HARTENBERG, strict=True)):
        a, d, alpha = link
        body = body.add_body(
            name=name,
            pos=(a, 0, d),
            quat=(np.cos(alpha / 2), np.sin(alpha / 2), 0, 0),
            gravcomp=1,
            mass=2.0,
            ipos=(0, 0, 0),
            inertia=(0.02, 0.02, 0.02),
            explicitinertial=True,
        )
        body.add_joint(
            name=name,
            axis=(0, 0, 1),
            range=(-JOINT_LIMIT, JOINT_LIMIT),
            armature=0.3 if index < 3 else 0.1,
        )
        _position_servo(
            spec, name, STIFFNESS[index], DAMPING[index], TORQUE[index], (-JOINT_LIMIT, JOINT_LIMIT)
        )
        link = frame
    _draw_links({name: spec.body(name) for name in JOINTS})
    flange = body.add_body(name="gripper", pos=(0, 0, DENAVIT_HARTENBERG[-1][1]), gravcomp=1)
    _add_gripper(spec, flange)


def _add_gripper(spec: mujoco.MjSpec, flange: mujoco.MjsBody) -> None:
    palm = TOOL_LENGTH - 0.062
    _solid(flange, CYLINDER, size=(0.036, 0.038, 0), pos=(0, 0, 0.038), rgba=DARK, mass=0.7)
    _solid(flange, BOX, size=(0.025, 0.070, 0.011), pos=(0, 0, palm - 0.011), rgba=STEEL, mass=0.2)
    flange.add_site(
        name="tcp", pos=(0, 0, TOOL_LENGTH), size=(0.002, 0.002, 0.002), rgba=(0, 0, 0, 0), group=4
    )
    for name, side in (("left", 1.0), ("right", -1.0)):
        finger = flange.add_body(name=f"{name}_finger", pos=(0, 0, palm), gravcomp=1)
        finger.add_joint(
            name=f"{name}_finger",
            type=mujoco.mjtJoint.mjJNT_SLIDE,
            axis=(0, side, 0),
            range=(0, OPENING / 2),
            armature=0.1,
        )
        _solid(
            finger,
            BOX,
            size=(0.014, 0.006, 0.026),
            pos=(0, side * 0.0065, 0.026),
            rgba=DARK,
            mass=0.05,
        )
        # The pad ends a little beyond the tool centre point and grips well: rubber.
        pad = _solid(
            finger,
            BOX,
            size=(0.018, 0.003, 0.019),
            pos=(0, side * 0.003, 0.051),
            rgba=(0.3, 0.31, 0.33, 1),
        )
        pad.mass, pad.condim, pad.friction, pad.name = 0.02, 4, (1.6, 0.02, 0.001), f"{name}_pad"
        pad.solimp, pad.solref = (0.95, 0.99, 0.001, 0.5, 2), (0.005, 1)
        _position_servo(spec, f"{name}_finger", 1500.0, 60.0, GRIP_FORCE, (0, OPENING / 2))
    mount = flange.add_body(name="wrist_camera", gravcomp=1, pos=(0.085, 0, 0.03))
    _visual(mount, BOX, size=(0.012, 0.030, 0.012), pos=(0, 0, -0.018), rgba=DARK)
    # A camera looks along its -z with y up. This one looks out of the gripper, with the tool's x at
    # the top of the image.
    axes = rotation_about((0, 1, 0), -0.06) @ np.column_stack([(0, 1, 0), (1, 0, 0), (0, 0, -1)])
    mount.add_camera(name="wrist", fovy=78, quat=quaternion(axes))


def _position_servo(
    spec: mujoco.MjSpec,
    joint: str,
    stiffness: float,
    damping: float,
    force: float,
    limits: tuple[float, float],
) -> None:
    actuator = spec.add_actuator(name=joint, target=joint, trntype=mujoco.mjtTrn.mjTRN_JOINT)
    actuator.set_to_position(kp=stiffness, kv=damping)
    actuator.forcelimited, actuator.forcerange = 1, (-force, force)
    actuator.ctrllimited, actuator.ctrlrange = 1, limits


def _draw_links(links: dict[str, mujoco.MjsBody]) -> None:
    """Add the visible geoms of the arm: pale tubes and blue caps.

    As on the real one, the upper arm is next to the shoulder.
    """
    shoulder, between = 0.135, 0.015
    _visual(links["shoulder_pan"], CYLINDER, size=(0.06, 0.075, 0), pos=(0, 0, 0.1), rgba=SHELL)
    _tube(links["shoulder_lift"], (0, 0, -0.06), (0, 0, shoulder + 0.05), 0.058, SHELL)
    _tube(links["shoulder_lift"], (0, 0, shoulder + 0.05), (0, 0, shoulder + 0.07), 0.055, CAP)
    _tube(links["shoulder_lift"], (0, 0, shoulder), (-0.425, 0, shoulder), 0.045, SHELL)
    _tube(links["elbow"], (0, 0, between - 0.05), (0, 0, shoulder + 0.045), 0.05, SHELL)
    _tube(links["elbow"], (0, 0, between - 0.07), (0, 0, between - 0.05), 0.047, CAP)
    _tube(links["elbow"], (0, 0, between), (-0.3922, 0, between), 0.036, SHELL)
    _tube(links["wrist_1"], (0, 0, -0.02), (0, 0, 0.16), 0.037, SHELL)
    _tube(links["wrist_1"], (0, 0, 0.16), (0, 0, 0.178), 0.035, CAP)
    _tube(links["wrist_2"], (0, 0, -0.04), (0, 0, 0.13), 0.037, SHELL)
    _tube(links["wrist_2"], (0, 0, 0.13), (0, 0, 0.148), 0.035, CAP)
    _tube(links["wrist_3"], (0, 0, -0.03), (0, 0, 0.0996), 0.036, SHELL)


def _tube(body: mujoco.MjsBody, start: Triple, end: Triple, radius: float, rgba: Colour) -> None:
    _visual(body, CYLINDER, fromto=(*start, *end), size=(radius, 0, 0), rgba=rgba)


def _visual(body: mujoco.MjsBody, kind: int, **properties: object) -> mujoco.MjsGeom:
    return body.add_geom(type=kind, contype=0, conaffinity=0, mass=0, **properties)


def _solid(body: mujoco.MjsBody, kind: int, **properties: object) -> mujoco.MjsGeom:
    return body.add_geom(
        type=kind, contype=GRIPPER_BIT, conaffinity=TABLE_BIT | OBJECT_BIT, **properties
    )
