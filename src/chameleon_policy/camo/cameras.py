"""Rendering without a screen: draws the two cameras, and says which package to install where it cannot."""

from __future__ import annotations

import os
from collections.abc import Sequence

import mujoco
import numpy as np
import numpy.typing as npt

from chameleon_policy.camo.opengl import LIBRARIES
from chameleon_policy.camo.scene import INVISIBLE_GROUP, LARGEST_IMAGE

VIEWS = ("third", "wrist")
Frame = npt.NDArray[np.uint8]


class Cameras:
    """Draws square pictures of a model from named cameras. Close it, or use it with `with`."""

    def __init__(self, model: mujoco.MjModel, size: int) -> None:
        if size > LARGEST_IMAGE:
            raise ValueError(f"image_size must be at most {LARGEST_IMAGE}, got {size}")
        try:
            self._renderer = mujoco.Renderer(model, size, size, max_geom=2 * model.ngeom + 10)
        except Exception as error:  # each backend fails in its own way: ImportError, AttributeError, GLError, RuntimeError
            raise ImportError(_missing_library(error)) from error
        flags = self._renderer.scene.flags
        for flag in (mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION, mujoco.mjtRndFlag.mjRND_SKYBOX):
            flags[flag] = 0
        self._option = mujoco.MjvOption()
        self._option.geomgroup[INVISIBLE_GROUP] = 0

    def draw(self, data: mujoco.MjData, views: Sequence[str] = VIEWS) -> dict[str, Frame]:
        """One picture (size, size, 3) per view."""
        frames = {}
        for view in views:
            self._renderer.update_scene(data, view, scene_option=self._option)
            frames[view] = self._renderer.render()
        return frames

    def close(self) -> None:
        """Free the OpenGL context."""
        self._renderer.close()

    def __enter__(self) -> Cameras:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _missing_library(error: Exception) -> str:
    backend = os.environ.get("MUJOCO_GL", "")
    packages = " or ".join(
        f"`sudo apt-get install {package}` (MUJOCO_GL={name})" for name, (_, package) in LIBRARIES.items()
    )
    return (
        f"pictures need an OpenGL library, and MuJoCo could not open one with MUJOCO_GL={backend!r} "
        f"({type(error).__name__}: {error}). Install one: {packages}. A program that imports mujoco before "
        "chameleon_policy.camo has to set MUJOCO_GL itself. Observations of the mode `state` need no OpenGL"
    )
