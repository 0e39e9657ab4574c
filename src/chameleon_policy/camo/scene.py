"""The scene without objects, the same for all tasks: physics, table, lights and third camera."""

from __future__ import annotations

import mujoco
import numpy as np

from chameleon_policy.camo.geometry import Array, quaternion
from chameleon_policy.camo.robot import BOX, TABLE_BIT

PLANE = mujoco.mjtGeom.mjGEOM_PLANE
INVISIBLE_GROUP = 3
"""Group of geoms that are simulated and not drawn."""

TIMESTEP = 1 / 480
LARGEST_IMAGE = 1024
THIRD_POSITION = np.array([1.00, 0.0, 0.62])
THIRD_TARGET = np.array([0.49, 0.0, 0.085])

WOOD, WALL, FLOOR = (0.80, 0.69, 0.55, 1), (0.74, 0.77, 0.78, 1), (0.52, 0.54, 0.55, 1)


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
