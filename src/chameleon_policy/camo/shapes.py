"""Low-polygon shapes made in code; they render faster than MuJoCo's own cylinders."""

from __future__ import annotations

from collections.abc import Sequence

import mujoco
import numpy as np

SEGMENTS = 20


def add_turned_mesh(
    spec: mujoco.MjSpec, name: str, profile: Sequence[tuple[float, float]], segments: int = SEGMENTS
) -> str:
    """Add a surface of revolution about z through (radius, height) points; return its name.

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
        for here in range(segments):
            there = (here + 1) % segments
            a, b = lower * segments + here, lower * segments + there
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
    return name
