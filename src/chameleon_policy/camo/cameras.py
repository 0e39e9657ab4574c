"""Rendering without a screen, and errors that name the package to install.

MuJoCo's own `Renderer` takes the OpenGL backend that was chosen when `mujoco` was imported, and
without a screen the default one ends the process. `Cameras` opens its context itself: EGL, else
OSMesa, or the one that MUJOCO_GL names.
"""

from __future__ import annotations

import contextlib
import ctypes.util
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

import mujoco
import numpy as np
import numpy.typing as npt

from chameleon_policy.camo.hand import HAND_GROUP
from chameleon_policy.camo.scene import INVISIBLE_GROUP, LARGEST_IMAGE

VIEWS = ("third", "wrist")
LIBRARIES = {"egl": ("EGL", "libegl1 libgl1-mesa-dri"), "osmesa": ("OSMesa", "libosmesa6")}
"""Backend -> its library, and the Debian packages that contain it."""
Frame = npt.NDArray[np.uint8]


class Cameras:
    """Renderer of square images from a model's named cameras; a context manager."""

    def __init__(self, model: mujoco.MjModel, size: int) -> None:
        if size > LARGEST_IMAGE:
            raise ValueError(f"image_size must be at most {LARGEST_IMAGE}, got {size}")
        self._model = model
        self._context = _open_context(size)
        self._context.make_current()
        self._renderer = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._renderer)
        self._area = mujoco.MjrRect(0, 0, size, size)
        self._scene = mujoco.MjvScene(model, maxgeom=model.ngeom + 10)
        for flag in (
            mujoco.mjtRndFlag.mjRND_SHADOW,
            mujoco.mjtRndFlag.mjRND_REFLECTION,
            mujoco.mjtRndFlag.mjRND_SKYBOX,
        ):
            self._scene.flags[flag] = 0
        self._option = mujoco.MjvOption()
        self._option.geomgroup[INVISIBLE_GROUP] = 0
        self._camera = mujoco.MjvCamera()
        self._camera.type = mujoco.mjtCamera.mjCAMERA_FIXED

    def draw(
        self, data: mujoco.MjData, *, hands: bool = True, views: Sequence[str] = VIEWS
    ) -> dict[str, Frame]:
        """Return an image (size, size, 3) per view; without `hands` they are left out."""
        self._option.geomgroup[HAND_GROUP] = hands
        self._context.make_current()
        frames = {}
        for view in views:
            self._camera.fixedcamid = self._model.camera(view).id
            kinds = mujoco.mjtCatBit.mjCAT_ALL
            mujoco.mjv_updateScene(
                self._model, data, self._option, None, self._camera, kinds, self._scene
            )
            mujoco.mjr_render(self._area, self._scene, self._renderer)
            pixels = np.empty((self._area.height, self._area.width, 3), np.uint8)
            mujoco.mjr_readPixels(pixels, None, self._area, self._renderer)
            frames[view] = np.ascontiguousarray(pixels[::-1])  # OpenGL counts rows from below
        return frames

    def close(self) -> None:
        """Free the OpenGL context."""
        if self._context is not None:
            self._context.make_current()
            self._renderer.free()
            self._context.free()
            self._context = None

    def __enter__(self) -> Cameras:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        # For environments that were not closed; at the end of the program the library closes them.
        if getattr(self, "_context", None) is not None and not sys.is_finalizing():
            self.close()


def _open_context(size: int) -> Any:
    """Return an OpenGL context, or raise an ImportError that names the packages to install."""
    # With several environments the software renderer's own threads only slow one another down.
    os.environ.setdefault("LP_NUM_THREADS", "0")
    with contextlib.suppress(ImportError):
        # Triton and the software renderer bring an LLVM each. Loading Triton after the renderer (by
        # torch, at the first optimizer step) ends the process with a segmentation fault.
        importlib.import_module("triton")
    backend = os.environ.get("MUJOCO_GL", "").lower().strip() or _installed_backend()
    try:
        if sys.platform == "linux" and backend not in LIBRARIES:
            if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
                raise ImportError("this backend needs a screen, and there is none")
            backend = "glfw"
        return importlib.import_module(f"mujoco.{backend}").GLContext(size, size)
    except Exception as error:  # ImportError, AttributeError, GLError, RuntimeError ...
        raise ImportError(_missing_library(backend, error)) from error


def _installed_backend() -> str:
    if sys.platform != "linux":
        return "cgl" if sys.platform == "darwin" else "glfw"
    found = [name for name, (library, _) in LIBRARIES.items() if ctypes.util.find_library(library)]
    return found[0] if found else "egl"


def _missing_library(backend: str, error: Exception) -> str:
    packages = " or ".join(
        f"`sudo apt-get install {names}` (MUJOCO_GL={name})"
        for name, (_, names) in LIBRARIES.items()
    )
    return (
        f"pictures need an OpenGL library, and {backend!r} could not be opened "
        f"({type(error).__name__}: {error}). Install one: {packages}. "
        "Observations of the mode `state` need no OpenGL"
    )
