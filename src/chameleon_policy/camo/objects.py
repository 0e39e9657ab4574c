"""The objects of the tasks: cups, a ball, plates, a sponge, shakers, a bowl, blocks and cards.

Every object is a free body named by its task. Its visible geoms (turned meshes without contacts)
and its solid ones (a few invisible primitives) are separate: thin walls standing on a table would
cost a hundred contacts. Blocks and cards are scenery: bodies without contacts that stay where the
task puts them, so that they cannot change how the arm moves.
"""

from __future__ import annotations

from collections.abc import Sequence

import mujoco
import numpy as np

from chameleon_policy.camo.robot import BOX, CYLINDER, GRIPPER_BIT, OBJECT_BIT, TABLE_BIT, Colour
from chameleon_policy.camo.scene import INVISIBLE_GROUP

SPHERE, MESH = mujoco.mjtGeom.mjGEOM_SPHERE, mujoco.mjtGeom.mjGEOM_MESH
SEGMENTS = 20
"""Corners of a turned mesh: low-polygon meshes render faster than MuJoCo's own cylinders."""

CUP_HEIGHT, CUP_RIM, CUP_TOP = 0.105, 0.041, 0.029
BALL_RADIUS = 0.021
PLATE_RADIUS, PLATE_INNER, PLATE_SURFACE = 0.078, 0.052, 0.008
SPONGE = (0.076, 0.046, 0.050)
"""Length, width, height."""
SPONGE_PAD, SPONGE_SOFTNESS = 0.024, 0.020
"""Thickness of its soft pad, and how far that can be pressed in."""
SHAKER_RADIUS, SHAKER_HEIGHT = 0.027, 0.112
BOWL_RADIUS, BOWL_HEIGHT = 0.075, 0.05

CHINA, BLUE_LINE = (0.80, 0.80, 0.78, 1), (0.30, 0.45, 0.66, 1)
CUP_RED = (0.78, 0.22, 0.17, 1)
BALL_YELLOW = (0.98, 0.80, 0.12, 1)
SPONGE_YELLOW, SPONGE_GREEN = (0.96, 0.82, 0.35, 1), (0.25, 0.52, 0.34, 1)
SPICES = ((0.95, 0.95, 0.96, 1), (0.20, 0.19, 0.19, 1), (0.77, 0.27, 0.12, 1))
"""Colours of salt, pepper and paprika, from left to right in the third view."""
GLASS, LID = (0.66, 0.76, 0.80, 1), (0.55, 0.57, 0.60, 1)
STONEWARE = (0.36, 0.47, 0.50, 1)
CUP_WHITE, CUP_SHADE = (0.83, 0.83, 0.80, 1), (0.42, 0.42, 0.41, 1)
PALETTE: dict[str, Colour] = {
    "red": (0.84, 0.10, 0.10, 1),
    "orange": (1.00, 0.50, 0.00, 1),
    "yellow": (1.00, 0.92, 0.05, 1),
    "green": (0.10, 0.55, 0.16, 1),
    "cyan": (0.10, 0.80, 0.85, 1),
    "blue": (0.10, 0.18, 0.80, 1),
    "pink": (1.00, 0.45, 0.80, 1),
    "black": (0.06, 0.06, 0.07, 1),
}
"""Colours of blocks and cards."""
STAND, STAND_HEIGHT = (0.45, 0.31, 0.20, 1), 0.012
BLOCK = (0.036, 0.036, 0.050)
"""Length, width and height of a block; it fits under a cup."""
CARD, CARD_TILT = (0.110, 0.085), -0.75
"""Width and height of a card, and how far it leans back from the third camera (rad)."""
UNDERGROUND = np.array([0.0, 0.0, -2.0])
"""Place of scenery that is not in use: the floor hides it from every camera."""


def add_cup(
    spec: mujoco.MjSpec,
    name: str,
    outside: Colour = CUP_RED,
    inside: Colour = (0.45, 0.14, 0.11, 1),
) -> None:
    """Add an upside-down cup, whose origin is the centre of the rim.

    Its walls are hollow: a ball fits under it.
    """
    if spec.mesh("cup") is None:
        bead = 0.003
        _add_turned_mesh(
            spec,
            "cup",
            [
                (CUP_RIM - 0.004, 0),
                (CUP_RIM + bead, 0),
                (CUP_RIM + bead, 0.007),
                (CUP_RIM, 0.009),
                (CUP_TOP + 0.002, CUP_HEIGHT - 0.004),
                (CUP_TOP - 0.001, CUP_HEIGHT),
                (CUP_TOP - 0.006, CUP_HEIGHT),
                (CUP_TOP - 0.008, CUP_HEIGHT - 0.003),
                (0, CUP_HEIGHT - 0.003),
            ],
        )
        _add_turned_mesh(
            spec,
            "cup_inside",
            [(0, CUP_HEIGHT - 0.006), (CUP_TOP - 0.003, CUP_HEIGHT - 0.006), (CUP_RIM - 0.004, 0)],
        )
    body = _add_object(spec, name, 0.12, 0.045, (0.002, 0.002, 0.001))
    _add_visible(body, "cup", outside)
    _add_visible(body, "cup_inside", inside)
    # Hollow only where the ball is: thin walls would let strong fingers through.
    hollow, walls, wall = 0.055, 8, 0.004
    for angle in 2 * np.pi * np.arange(walls) / walls:
        x, y = (CUP_RIM - wall - 0.002) * np.cos(angle), (CUP_RIM - wall - 0.002) * np.sin(angle)
        size = (wall, CUP_RIM * np.tan(np.pi / walls) - 0.002, hollow / 2 - 0.002)
        _add_solid(
            body,
            BOX,
            size=size,
            pos=(x, y, hollow / 2),
            quat=(np.cos(angle / 2), 0, 0, np.sin(angle / 2)),
        )
    solid = (CUP_HEIGHT - hollow) / 2
    _add_solid(body, CYLINDER, size=(CUP_TOP + 0.002, solid, 0), pos=(0, 0, CUP_HEIGHT - solid))
    _stand_on_feet(body, CUP_RIM, (0.004,))
    _stand_on_feet(body, CUP_TOP, (CUP_HEIGHT - 0.004,))


def add_ball(spec: mujoco.MjSpec, name: str) -> None:
    """Add a ball that fits under a cup; its origin is its centre."""
    body = _add_object(spec, name, 0.02, 0.0, (0.0002, 0.0002, 0.0002))
    body.add_geom(
        type=SPHERE,
        size=(BALL_RADIUS, 0, 0),
        rgba=BALL_YELLOW,
        contype=OBJECT_BIT,
        mass=0,
        density=0,
        conaffinity=TABLE_BIT | GRIPPER_BIT | OBJECT_BIT,
        condim=6,
        friction=(0.7, 0.01, 0.002),
    )


def add_plate(spec: mujoco.MjSpec, name: str) -> None:
    """Add a dinner plate; its origin is the centre of its foot."""
    if spec.mesh("plate") is None:
        _add_turned_mesh(
            spec,
            "plate",
            [
                (0, PLATE_SURFACE),
                (PLATE_INNER, PLATE_SURFACE),
                (PLATE_INNER + 0.006, 0.012),
                (PLATE_RADIUS, 0.018),
                (PLATE_RADIUS + 0.001, 0.016),
                (PLATE_INNER + 0.004, 0.001),
                (PLATE_INNER, 0),
            ][::-1],
            segments=28,
        )
        line = PLATE_INNER + 0.016
        _add_turned_mesh(
            spec, "plate_line", [(line + 0.003, 0.01715), (line, 0.01595)], segments=28
        )
    body = _add_object(spec, name, 0.7, 0.008, (0.0014, 0.0014, 0.0028))
    _add_visible(body, "plate", CHINA)
    _add_visible(body, "plate_line", BLUE_LINE)
    _add_solid(
        body,
        CYLINDER,
        size=(PLATE_INNER + 0.004, PLATE_SURFACE / 2, 0),
        pos=(0, 0, PLATE_SURFACE / 2),
        on_table=True,
    )
    for angle in 2 * np.pi * np.arange(10) / 10:
        radius = PLATE_RADIUS - 0.004
        _add_solid(
            body,
            SPHERE,
            size=(0.004, 0, 0),
            pos=(radius * np.cos(angle), radius * np.sin(angle), 0.0135),
        )


def add_sponge(spec: mujoco.MjSpec, name: str) -> None:
    """Add a sponge with a thick soft pad; its origin is the middle of its underside.

    The pad gives way by centimetres: the sponge reaches the plate wherever in the foam it is held.
    """
    length, width, height = SPONGE
    body = _add_object(spec, name, 0.04, height / 2, (0.0005, 0.0008, 0.001))
    foam, thickness = height - SPONGE_PAD, SPONGE_PAD
    _add_solid(
        body,
        BOX,
        size=(length / 2, width / 2, foam / 2),
        pos=(0, 0, height - foam / 2),
        rgba=SPONGE_YELLOW,
        group=0,
        friction=(1.2, 0.02, 0.001),
    )
    middle = (0, 0, thickness / 2)
    pad = body.add_body(
        name=f"{name}_pad",
        mass=0.01,
        ipos=middle,
        inertia=(5e-6, 8e-6, 1e-5),
        explicitinertial=True,
    )
    pad.add_joint(
        name=f"{name}_pad",
        type=mujoco.mjtJoint.mjJNT_SLIDE,
        axis=(0, 0, 1),
        range=(0, SPONGE_SOFTNESS),
        stiffness=120,
        damping=3,
        armature=0.01,
    )
    # Priority makes the pad's own low friction count: a wet sponge glides over a plate instead of
    # dragging it along. The pad does not touch the fingers, which would pinch it.
    touched = _add_solid(
        pad,
        BOX,
        on_table=True,
        size=(length / 2, width / 2, thickness / 2),
        pos=middle,
        rgba=SPONGE_GREEN,
        group=0,
        friction=(0.3, 0.01, 0.001),
        priority=1,
        name=f"{name}_pad",
    )
    touched.contype, touched.conaffinity = 0, OBJECT_BIT | TABLE_BIT


def add_shaker(spec: mujoco.MjSpec, name: str, spice: Colour) -> None:
    """Add a glass shaker with a metal lid; its origin is the centre of its bottom."""
    radius, height = SHAKER_RADIUS, SHAKER_HEIGHT
    if spec.mesh("shaker") is None:
        _add_turned_mesh(spec, "shaker", [(0, 0), (radius, 0), (radius, 0.006)])
        _add_turned_mesh(spec, "shaker_fill", [(radius, 0.006), (radius, 0.062)])
        _add_turned_mesh(spec, "shaker_glass", [(radius, 0.062), (radius - 0.003, 0.080)])
        _add_turned_mesh(
            spec,
            "shaker_lid",
            [
                (radius - 0.003, 0.080),
                (radius + 0.001, 0.080),
                (radius + 0.001, 0.096),
                (radius - 0.006, height - 0.004),
                (0, height),
            ],
        )
    # a heavy glass bottom keeps it upright
    body = _add_object(spec, name, 0.13, 0.03, (0.001, 0.001, 0.0004))
    for part, rgba in (
        ("shaker", GLASS),
        ("shaker_fill", spice),
        ("shaker_glass", GLASS),
        ("shaker_lid", LID),
    ):
        _add_visible(body, part, rgba)
    _add_solid(body, CYLINDER, size=(radius, height / 2 - 0.003, 0), pos=(0, 0, height / 2))
    _stand_on_feet(body, radius + 0.002, (0.004, height - 0.01))


def add_bowl(spec: mujoco.MjSpec, name: str) -> None:
    """Add a mixing bowl; its origin is the centre of its foot."""
    if spec.mesh("bowl") is None:
        _add_turned_mesh(
            spec,
            "bowl",
            [
                (0, 0),
                (0.04, 0),
                (0.044, 0.004),
                (BOWL_RADIUS - 0.008, 0.026),
                (BOWL_RADIUS, BOWL_HEIGHT),
                (BOWL_RADIUS - 0.004, BOWL_HEIGHT),
                (BOWL_RADIUS - 0.012, 0.028),
                (0.042, 0.010),
                (0, 0.008),
            ],
            segments=24,
        )
    body = _add_object(spec, name, 0.6, 0.02, (0.0016, 0.0016, 0.003))
    _add_visible(body, "bowl", STONEWARE)
    _add_solid(body, CYLINDER, size=(0.05, 0.014, 0), pos=(0, 0, 0.016))
    for angle in 2 * np.pi * np.arange(10) / 10:
        position = (
            (BOWL_RADIUS - 0.005) * np.cos(angle),
            (BOWL_RADIUS - 0.005) * np.sin(angle),
            BOWL_HEIGHT - 0.012,
        )
        _add_solid(body, SPHERE, size=(0.01, 0, 0), pos=position)
    _stand_on_feet(body, 0.044, (0.004,), friction=0.8)


def add_block(spec: mujoco.MjSpec, name: str, colour: Colour) -> None:
    """Add a block as scenery; its origin is the centre of its bottom."""
    body = spec.worldbody.add_body(name=name, mocap=True, pos=UNDERGROUND)
    _add_scenery(body, BOX, size=np.array(BLOCK) / 2, pos=(0, 0, BLOCK[2] / 2), rgba=colour)


def add_card(spec: mujoco.MjSpec, name: str, colour: Colour) -> None:
    """Add a card as scenery; its origin is the middle of its lower edge."""
    body = spec.worldbody.add_body(name=name, mocap=True, pos=UNDERGROUND)
    width, height = CARD
    tilt = (np.cos(CARD_TILT / 2), 0, np.sin(CARD_TILT / 2), 0)
    middle = height / 2 * np.array([np.sin(CARD_TILT), 0, np.cos(CARD_TILT)])
    _add_scenery(body, BOX, size=(0.002, width / 2, height / 2), pos=middle, quat=tilt, rgba=colour)


def add_stand(spec: mujoco.MjSpec, x: float, y: float) -> None:
    """Add a wooden stand for a card, which stays on the table."""
    _add_scenery(
        spec.worldbody,
        BOX,
        size=(0.012, CARD[0] / 2 + 0.008, STAND_HEIGHT / 2),
        pos=(x, y, STAND_HEIGHT / 2),
        rgba=STAND,
    )


def _add_scenery(body: mujoco.MjsBody, kind: int, **properties: object) -> None:
    body.add_geom(type=kind, contype=0, conaffinity=0, mass=0, density=0, **properties)


def _add_object(
    spec: mujoco.MjSpec, name: str, mass: float, centre: float, inertia: tuple[float, float, float]
) -> mujoco.MjsBody:
    """Add a free body with its centre of mass at this height; `inertia` is that of one kilogram."""
    body = spec.worldbody.add_body(
        name=name,
        mass=mass,
        ipos=(0, 0, centre),
        inertia=tuple(mass * np.array(inertia)),
        explicitinertial=True,
    )
    body.add_freejoint(name=name)
    return body


def _add_visible(body: mujoco.MjsBody, mesh: str, rgba: Colour) -> None:
    """Add a visible mesh without contacts."""
    body.add_geom(type=MESH, meshname=mesh, rgba=rgba, contype=0, conaffinity=0, mass=0, density=0)


def _add_solid(
    body: mujoco.MjsBody, kind: int, *, on_table: bool = False, **properties: object
) -> mujoco.MjsGeom:
    """Add an invisible geom that touches gripper and objects, and perhaps the table."""
    affinity = GRIPPER_BIT | OBJECT_BIT | (TABLE_BIT if on_table else 0)
    defaults: dict[str, object] = {
        "condim": 4,
        "friction": (0.9, 0.01, 0.001),
        "group": INVISIBLE_GROUP,
        "mass": 0,
        "density": 0,
    }
    return body.add_geom(
        type=kind, contype=OBJECT_BIT, conaffinity=affinity, **{**defaults, **properties}
    )


def _stand_on_feet(
    body: mujoco.MjsBody, radius: float, heights: tuple[float, ...], friction: float = 0.25
) -> None:
    """Add small spheres as the only contact with the table, at the bottom and at further heights.

    The upper ones support a toppled object. They slide easily, so that an object pushed at half its
    height slides rather than falls over.
    """
    foot = 0.004
    for height in heights:
        for angle in np.pi * (np.arange(4) + 0.5) / 2:
            x, y = (radius - foot) * np.cos(angle), (radius - foot) * np.sin(angle)
            body.add_geom(
                type=SPHERE,
                size=(foot, 0, 0),
                pos=(x, y, height),
                contype=0,
                conaffinity=TABLE_BIT,
                condim=3,
                friction=(friction, 0.01, 0.001),
                group=INVISIBLE_GROUP,
                mass=0,
                density=0,
            )


def _add_turned_mesh(
    spec: mujoco.MjSpec, name: str, profile: Sequence[tuple[float, float]], segments: int = SEGMENTS
) -> None:
    """Add a surface of revolution about z through (radius, height) points.

    The outside lies to the left of the profile's direction: draw it upwards on the outside,
    downwards inside.
    """
    angles = 2 * np.pi * np.arange(segments) / segments
    rings = [
        np.column_stack([r * np.cos(angles), r * np.sin(angles), np.full(segments, z)])
        for r, z in profile
    ]
    faces = []
    for lower in range(len(profile) - 1):
        for left in range(segments):
            right = (left + 1) % segments
            a, b = lower * segments + left, lower * segments + right
            c, d = a + segments, b + segments
            if profile[lower][0] > 0:
                faces.append((a, b, d))
            if profile[lower + 1][0] > 0:
                faces.append((a, d, c))
    mesh = spec.add_mesh(name=name)
    mesh.uservert = np.concatenate(rings).ravel()
    mesh.userface = np.asarray(faces).ravel()
    # A thin surface has no volume for an inertia; bodies get theirs from their solid geoms.
    mesh.inertia = mujoco.mjtMeshInertia.mjMESH_INERTIA_SHELL
