"""Chooses MuJoCo's OpenGL backend. MuJoCo reads the choice when it is imported, so this module must not import it."""

from __future__ import annotations

import ctypes.util
import os
import sys

LIBRARIES = {"egl": ("EGL", "libegl1 libgl1-mesa-dri"), "osmesa": ("OSMesa", "libosmesa6")}
"""Backend: its library, and the Debian packages that bring it."""


def choose_backend() -> None:
    """Set MUJOCO_GL where the user has not: EGL, else OSMesa."""
    # The software renderer's own threads only get in one another's way when several environments run.
    os.environ.setdefault("LP_NUM_THREADS", "0")
    if sys.platform == "linux" and not os.environ.get("MUJOCO_GL"):
        found = [name for name, (library, _) in LIBRARIES.items() if ctypes.util.find_library(library)]
        os.environ["MUJOCO_GL"] = found[0] if found else "egl"
