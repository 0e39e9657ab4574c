"""Episodes in named arrays: the common part of HDF5 files and zarr replay buffers.

Conventions say which array holds which quantity.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from chameleon_policy.data.episodes import Episodes, Keys, Layout, check_key
from chameleon_policy.data.foreign_files import LARGEST_SIDE, LARGEST_VECTOR

STATE_CONVENTIONS = (
    # robomimic, two arms and one
    tuple(
        f"robot{arm}_{part}" for arm in (0, 1) for part in ("eef_pos", "eef_quat", "gripper_qpos")
    ),
    ("robot0_eef_pos", "robot0_eef_quat", "robot0_gripper_qpos"),
    # LIBERO
    ("ee_states", "gripper_states"),
    ("ee_pos", "ee_ori", "gripper_states"),
    # Diffusion Policy: Push-T, and its environments with images
    ("state",),
    ("agent_pos",),
)
"""The first of these whose arrays all exist is the state."""
OBJECTS = "object"


class StoredArray(Protocol):
    """An array on disk, of one episode or of all episodes one after the other."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape, time steps first."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the numbers."""


def choose_layout(
    source: Path, arrays: Mapping[str, StoredArray], keys: Keys, action: str
) -> Layout:
    """Choose the array of each quantity: by the user's keys, otherwise by convention.

    Args:
        source: The dataset, for messages.
        arrays: Key -> array.
        keys: The user's choice.
        action: Key of the actions, by convention.
    """
    numbers = {
        key: array
        for key, array in arrays.items()
        if array.dtype.kind in "fiub" and 1 <= len(array.shape) <= 3
    }
    vectors = {key: (*array.shape, 1)[1] for key, array in numbers.items() if len(array.shape) < 3}
    pictures = {key: array.shape[1:3] for key, array in arrays.items() if _holds_pictures(array)}

    action = keys.action or action
    check_key(action, vectors, source, "action")
    state = keys.state or next(
        (known for known in STATE_CONVENTIONS if all(key in vectors for key in known)), None
    )
    if state is None:
        low_dimensional = ", ".join(key for key in vectors if key != action) or "none"
        usual = "; ".join(" + ".join(known) for known in STATE_CONVENTIONS[1:])
        raise ValueError(
            f"{source}: expected the robot's state under one of the usual keys ({usual}); the "
            f"arrays of numbers are: {low_dimensional}. Choose among them with "
            "Keys(state=('...',)) or --state-keys"
        )
    for key in state:
        check_key(key, vectors, source, "state")
    views = tuple(pictures) if keys.views is None else keys.views
    for view in views:
        check_key(view, pictures, source, "pictures (T, H, W, 3)")
    objects = keys.objects or (OBJECTS if OBJECTS in numbers and not views else None)
    slots = None
    if objects is not None:
        check_key(objects, numbers, source, "objects")
        shape = numbers[objects].shape[1:]
        slots = objects, (shape[0], shape[1]) if len(shape) == 2 else (1, vectors[objects])
    for key in (*state, action, *([objects] if objects else [])):
        check_size(source, key, math.prod(numbers[key].shape[1:]), LARGEST_VECTOR, "numbers")
    for view in views:
        check_size(source, view, max(pictures[view]), LARGEST_SIDE, "pixels along a side")
    return Layout(
        state={key: vectors[key] for key in state},
        action=(action, vectors[action]),
        views={view: (pictures[view][0], pictures[view][1]) for view in views},
        view_keys={view: view for view in views},
        objects=slots,
    )


def check_size(source: Path, key: str, size: int, most: int, unit: str) -> None:
    """Raise a ValueError if one time step of an array is empty, or larger than a limit."""
    if not 1 <= size <= most:
        raise ValueError(
            f"{source}, {key}: expected 1 to {most:,} {unit} at a time step, got {size:,}; choose "
            "other arrays, or copy the dataset again"
        )


def _holds_pictures(array: StoredArray) -> bool:
    colour = len(array.shape) == 4 and array.shape[3] == 3
    return colour and (array.dtype == np.uint8 or array.dtype.kind == "f")


class ArrayEpisodes(Episodes):
    """Episodes in named arrays; pictures may be stored as floating-point numbers."""

    @abstractmethod
    def _stored(self, index: int, key: str) -> np.ndarray:
        """Return an array of an episode exactly as it is stored."""

    def array(self, index: int, key: str) -> np.ndarray:
        """Return an array of an episode as it is stored, but pictures as uint8."""
        stored = self._stored(index, key)
        if key not in self.layout.view_keys or stored.dtype.kind != "f":
            return stored
        where = f"{self.location(index, key)}, episode {index}"
        if not np.isfinite(stored).all():
            step = int(np.argwhere(~np.isfinite(stored))[0][0])
            raise ValueError(
                f"{where}: a pixel at time step {step} is no finite number; expected "
                "0 to 255, or 0 to 1"
            )
        factor = self._factors[key]
        lowest, highest = float(stored.min(initial=0)), float(stored.max(initial=0))
        if lowest < 0 or highest * factor > 255.5:
            raise ValueError(
                f"{where}: expected pixels from 0 to {255 / factor:g}, as in the first episode, "
                f"got {lowest:g} to {highest:g}; store pictures as uint8"
            )
        pixels: np.ndarray = (
            np.rint(stored * stored.dtype.type(factor)).clip(0, 255).astype(np.uint8)
        )
        return pixels

    @cached_property
    def _factors(self) -> dict[str, float]:
        """Factors that bring pixels to 0..255: 255 for keys whose pixels lie in 0..1, otherwise 1.

        The first episode that is not black decides for all: a single episode may just be dark.
        """
        factors = {}
        for key in self.layout.view_keys.values():
            brightest = (self._stored(index, key).max(initial=0) for index in range(len(self)))
            factors[key] = (
                255.0 if next((value for value in brightest if value > 0), 255) <= 1 else 1.0
            )
        return factors
