"""The parts of scenes: table, light, the third-person camera, and the objects of the tasks.

Every object is a free body named by its task. The visible geoms (turned meshes, no contact) and the
touched ones (a few primitives, no colour) are separate: thin walls standing on a table would cost a
hundred contacts.
"""

from __future__ import annotations

import mujoco
import numpy as np

from chameleon_policy.camo.geometry import Array, quaternion
from chameleon_policy.camo.robot import BOX, CYLINDER, GRIPPER_BIT, OBJECT_BIT, TABLE_BIT, Colour
from chameleon_policy.camo.shapes import add_turned_mesh

SPHERE, MESH, PLANE = (
    mujoco.mjtGeom.mjGEOM_SPHERE,
    mujoco.mjtGeom.mjGEOM_MESH,
    mujoco.mjtGeom.mjGEOM_PLANE,
)
INVISIBLE_GROUP = 3
"""Group of geoms that are simulated and not drawn."""

TIMESTEP = 1 / 480
LARGEST_IMAGE = 1024
THIRD_POSITION = np.array([1.00, 0.0, 0.62])
THIRD_TARGET = np.array([0.49, 0.0, 0.085])

CUP_HEIGHT, CUP_RIM, CUP_TOP = 0.105, 0.041, 0.029
BALL_RADIUS = 0.021
PLATE_RADIUS, PLATE_INNER, PLATE_SURFACE = 0.078, 0.052, 0.008
SPONGE = (0.076, 0.046, 0.050)
"""Length, width, height."""
SPONGE_PAD, SPONGE_SOFTNESS = 0.024, 0.020
"""Thickness of its soft pad, and how far that can be pressed in."""
SHAKER_RADIUS, SHAKER_HEIGHT = 0.027, 0.112
BOWL_RADIUS, BOWL_HEIGHT = 0.075, 0.05

WOOD, WALL, FLOOR = (0.80, 0.69, 0.55, 1), (0.74, 0.77, 0.78, 1), (0.52, 0.54, 0.55, 1)
CHINA, BLUE_LINE = (0.80, 0.80, 0.78, 1), (0.30, 0.45, 0.66, 1)
CUP_RED = (0.78, 0.22, 0.17, 1)
BALL_YELLOW = (0.98, 0.80, 0.12, 1)
SPONGE_YELLOW, SPONGE_GREEN = (0.96, 0.82, 0.35, 1), (0.25, 0.52, 0.34, 1)
SPICES = ((0.95, 0.95, 0.96, 1), (0.20, 0.19, 0.19, 1), (0.77, 0.27, 0.12, 1))
"""Colours of salt, pepper and paprika, from left to right in the third view."""
GLASS, LID = (0.66, 0.76, 0.80, 1), (0.55, 0.57, 0.60, 1)
STONEWARE = (0.36, 0.47, 0.50, 1)


def new_scene(name: str) -> mujoco.MjSpec:
    """Return a scene with physics options, table, light and the third camera, without a robot."""
    spec = mujoco.MjSpec()
    spec.modelname = name
    spec.compiler.degree = False
    spec.option.timestep = TIMESTEP
    spec.option.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    spec.option.cone = mujoco.mjtCone.mjCONE_ELLIPTIC
    spec.option.impratio = 10
    spec.option.noslip_iterations = 2  # gripped objects must not creep out of the fingers
    spec.stat.extent, spec.stat.center = 1.0, (0.5, 0, 0)
    _set_visuals(spec.visual)
    _add_lights(spec.worldbody)
    _add_room(spec)
    return spec


def _set_visuals(visual: mujoco.MjVisual) -> None:
    quality = visual.quality
    # Shadows and multisampling cost more than everything else together in a software renderer.
    quality.shadowsize, quality.offsamples, quality.numslices, quality.numstacks = 0, 0, 16, 4
    visual.global_.offwidth = visual.global_.offheight = LARGEST_IMAGE
    visual.map.znear, visual.map.zfar = 0.01, 10
    visual.headlight.ambient, visual.headlight.diffuse = (
        (0.42, 0.42, 0.42),
        (0.12, 0.12, 0.12),
    )
    visual.headlight.specular = (0, 0, 0)


def _add_lights(world: mujoco.MjsBody) -> None:
    world.add_light(
        name="window",
        type=mujoco.mjtLightType.mjLIGHT_DIRECTIONAL,
        dir=(-0.45, 0.35, -0.8),
        diffuse=(0.62, 0.61, 0.58),
        specular=(0.15, 0.15, 0.15),
        castshadow=False,
    )
    world.add_light(
        name="lamp",
        type=mujoco.mjtLightType.mjLIGHT_DIRECTIONAL,
        dir=(0.3, -0.6, -0.5),
        diffuse=(0.22, 0.22, 0.24),
        specular=(0, 0, 0),
        castshadow=False,
    )


def _add_room(spec: mujoco.MjSpec) -> None:
    """Add the third camera, the table, a wall and a floor."""
    world = spec.worldbody
    world.add_camera(
        name="third",
        pos=THIRD_POSITION,
        fovy=46,
        quat=quaternion(_look_at(THIRD_POSITION, THIRD_TARGET)),
    )
    board = world.add_geom(
        name="board",
        type=BOX,
        size=(0.62, 0.75, 0.02),
        pos=(0.42, 0, -0.02),
        contype=0,
        conaffinity=0,
        rgba=WOOD,
    )
    board.material = _wood(spec)
    # Objects stand on a plane, not on the visible board: contact with a plane is faster than with a
    # box. The larger of two frictions counts, so that objects have their own.
    world.add_geom(
        name="table",
        type=PLANE,
        size=(2, 2, 0.1),
        contype=TABLE_BIT,
        conaffinity=0,
        group=INVISIBLE_GROUP,
        friction=(0.2, 0.01, 0.001),
    )
    world.add_geom(
        name="wall",
        type=BOX,
        size=(0.02, 3, 2),
        pos=(-0.6, 0, 0),
        contype=0,
        conaffinity=0,
        rgba=WALL,
    )
    world.add_geom(
        name="floor",
        type=BOX,
        size=(4, 4, 0.02),
        pos=(0, 0, -0.8),
        contype=0,
        conaffinity=0,
        rgba=FLOOR,
    )


def _look_at(position: Array, target: Array) -> Array:
    """Return the axes (3, 3) of a camera, which looks along its -z, with y up in the image."""
    back = (position - target) / np.linalg.norm(position - target)
    right = np.cross((0.0, 0.0, 1.0), back)
    right /= np.linalg.norm(right)
    return np.column_stack([right, np.cross(back, right), back])


def _wood(spec: mujoco.MjSpec) -> str:
    """Add a material of planks with a faint grain, drawn from a fixed seed; return its name."""
    size, planks = 128, 4
    rng = np.random.default_rng(7)
    rows = np.arange(size)
    tone = 0.93 + 0.05 * rng.random(planks)[rows * planks // size]
    tone = tone + 0.02 * np.convolve(rng.standard_normal(size), np.ones(3) / 3, "same")
    tone[rows % (size // planks) == 0] -= 0.14
    grain = 0.012 * np.cumsum(rng.standard_normal((size, size)), axis=1) / np.sqrt(size)
    image = np.clip((tone[:, None] + grain)[..., None] * np.ones(3), 0, 1)
    texture = spec.add_texture(
        name="wood", type=mujoco.mjtTexture.mjTEXTURE_2D, width=size, height=size, nchannel=3
    )
    texture.data = (255 * image).astype(np.uint8).tobytes()
    material = spec.add_material(name="wood", texrepeat=(1, 1))
    material.textures[mujoco.mjtTextureRole.mjTEXROLE_RGB] = "wood"
    return "wood"


def _object(
    spec: mujoco.MjSpec, name: str, mass: float, centre: float, inertia: tuple[float, float, float]
) -> mujoco.MjsBody:
    body = spec.worldbody.add_body(
        name=name,
        mass=mass,
        ipos=(0, 0, centre),
        inertia=tuple(mass * np.array(inertia)),
        explicitinertial=True,
    )
    body.add_freejoint(name=name)
    return body


def _seen(body: mujoco.MjsBody, mesh: str, rgba: Colour) -> None:
    body.add_geom(type=MESH, meshname=mesh, rgba=rgba, contype=0, conaffinity=0, mass=0, density=0)


def _touched(
    body: mujoco.MjsBody, kind: int, *, on_table: bool = False, **properties: object
) -> mujoco.MjsGeom:
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


def add_cup(spec: mujoco.MjSpec, name: str) -> None:
    """Add an upside-down cup, whose origin is the centre of the rim.

    Its walls are hollow: a ball fits under it.
    """
    if spec.mesh("cup") is None:
        bead = 0.003
        add_turned_mesh(
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
        add_turned_mesh(
            spec,
            "cup_inside",
            [(0, CUP_HEIGHT - 0.006), (CUP_TOP - 0.003, CUP_HEIGHT - 0.006), (CUP_RIM - 0.004, 0)],
        )
    body = _object(spec, name, 0.12, 0.045, (0.002, 0.002, 0.001))
    _seen(body, "cup", CUP_RED)
    _seen(body, "cup_inside", (0.45, 0.14, 0.11, 1))
    # Hollow only where the ball is: thin walls would let strong fingers through.
    hollow, walls, wall = 0.055, 8, 0.004
    for angle in 2 * np.pi * np.arange(walls) / walls:
        x, y = (CUP_RIM - wall - 0.002) * np.cos(angle), (CUP_RIM - wall - 0.002) * np.sin(angle)
        size = (wall, CUP_RIM * np.tan(np.pi / walls) - 0.002, hollow / 2 - 0.002)
        _touched(
            body,
            BOX,
            size=size,
            pos=(x, y, hollow / 2),
            quat=(np.cos(angle / 2), 0, 0, np.sin(angle / 2)),
        )
    solid = (CUP_HEIGHT - hollow) / 2
    _touched(body, CYLINDER, size=(CUP_TOP + 0.002, solid, 0), pos=(0, 0, CUP_HEIGHT - solid))
    _stand_on_feet(body, CUP_RIM, (0.004,))
    _stand_on_feet(body, CUP_TOP, (CUP_HEIGHT - 0.004,))


def add_ball(spec: mujoco.MjSpec, name: str) -> None:
    """Add a ball that fits under a cup; its origin is its centre."""
    body = _object(spec, name, 0.02, 0.0, (0.0002, 0.0002, 0.0002))
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
        add_turned_mesh(
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
        add_turned_mesh(spec, "plate_line", [(line + 0.003, 0.01715), (line, 0.01595)], segments=28)
    body = _object(spec, name, 0.7, 0.008, (0.0014, 0.0014, 0.0028))
    _seen(body, "plate", CHINA)
    _seen(body, "plate_line", BLUE_LINE)
    _touched(
        body,
        CYLINDER,
        size=(PLATE_INNER + 0.004, PLATE_SURFACE / 2, 0),
        pos=(0, 0, PLATE_SURFACE / 2),
        on_table=True,
    )
    for angle in 2 * np.pi * np.arange(10) / 10:
        radius = PLATE_RADIUS - 0.004
        _touched(
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
    body = _object(spec, name, 0.04, height / 2, (0.0005, 0.0008, 0.001))
    foam, thickness = height - SPONGE_PAD, SPONGE_PAD
    _touched(
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
    touched = _touched(
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
        add_turned_mesh(spec, "shaker", [(0, 0), (radius, 0), (radius, 0.006)])
        add_turned_mesh(spec, "shaker_fill", [(radius, 0.006), (radius, 0.062)])
        add_turned_mesh(spec, "shaker_glass", [(radius, 0.062), (radius - 0.003, 0.080)])
        add_turned_mesh(
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
    body = _object(spec, name, 0.13, 0.03, (0.001, 0.001, 0.0004))
    for part, rgba in (
        ("shaker", GLASS),
        ("shaker_fill", spice),
        ("shaker_glass", GLASS),
        ("shaker_lid", LID),
    ):
        _seen(body, part, rgba)
    _touched(body, CYLINDER, size=(radius, height / 2 - 0.003, 0), pos=(0, 0, height / 2))
    _stand_on_feet(body, radius + 0.002, (0.004, height - 0.01))


def add_bowl(spec: mujoco.MjSpec, name: str) -> None:
    """Add a mixing bowl; its origin is the centre of its foot."""
    if spec.mesh("bowl") is None:
        add_turned_mesh(
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
    body = _object(spec, name, 0.6, 0.02, (0.0016, 0.0016, 0.003))
    _seen(body, "bowl", STONEWARE)
    _touched(body, CYLINDER, size=(0.05, 0.014, 0), pos=(0, 0, 0.016))
    for angle in 2 * np.pi * np.arange(10) / 10:
        position = (
            (BOWL_RADIUS - 0.005) * np.cos(angle),
            (BOWL_RADIUS - 0.005) * np.sin(angle),
            BOWL_HEIGHT - 0.012,
        )
        _touched(body, SPHERE, size=(0.01, 0, 0), pos=position)
    _stand_on_feet(body, 0.044, (0.004,), friction=0.8)
