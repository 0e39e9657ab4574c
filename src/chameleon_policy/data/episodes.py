"""Whole episodes of a dataset: the interface that every format implements.

`Episodes` describes a dataset (views, sizes, lengths) without decoding anything; `Episodes.read`
returns one episode. A format only says where its arrays lie; episodes are checked here, once for
all formats.
"""

from __future__ import annotations

import copy
import difflib
import importlib
import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

LARGEST_NUMBER = 1e15
"""Largest absolute value of state, actions and object slots."""


@dataclass(frozen=True, kw_only=True, eq=False)
class EpisodeArrays:
    """The arrays of one episode, with the same number T of time steps in each."""

    state: np.ndarray
    """(T, P) float32."""
    actions: np.ndarray
    """(T, A) float32."""
    images: Mapping[str, np.ndarray]
    """View -> (T, H, W, 3) uint8."""
    objects: np.ndarray | None
    """(T, K, F) float32: K object slots of F numbers."""
    instruction: str
    decision_steps: tuple[int, ...] = ()
    """Time steps of a Camo episode's decisions; empty for other datasets."""
    answers: tuple[int, ...] = ()
    """Right answer of each decision: the index of a plate, a cup or a shaker."""

    @property
    def length(self) -> int:
        """Number of time steps, T."""
        return len(self.actions)


@dataclass(frozen=True, kw_only=True)
class Keys:
    """The arrays of a dataset to use. None: by the convention of its format."""

    state: Annotated[tuple[str, ...] | None, tyro.conf.arg(name="state-keys")] = None
    """Arrays of proprioception, joined in this order."""
    action: Annotated[str | None, tyro.conf.arg(name="action-key")] = None
    """Array of the actions."""
    views: Annotated[tuple[str, ...] | None, tyro.conf.arg(name="view-keys")] = None
    """Cameras; None: all of them, empty: none."""
    objects: Annotated[str | None, tyro.conf.arg(name="objects-key")] = None
    """Object slots; None: the format's usual array if no cameras are used, else none."""

    def __post_init__(self) -> None:
        for name, chosen in (("state", self.state), ("views", self.views)):
            if chosen is not None and (isinstance(chosen, str) or len(set(chosen)) != len(chosen)):
                raise ValueError(
                    f"Keys.{name} must be a tuple of different keys, such as ('a', 'b'); got "
                    f"{chosen!r}"
                )
        if self.state == ():
            raise ValueError(
                "Keys.state must name at least one key, or be None for the format's convention; "
                "got ()"
            )


DEFAULT_KEYS = Keys()


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The arrays of a dataset that are used, with their shapes at one time step."""

    state: Mapping[str, int]
    """Key -> size; joined in this order."""
    action: tuple[str, int]
    """Key, size."""
    views: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """View -> (height, width)."""
    view_keys: Mapping[str, str] = field(default_factory=dict)
    """View -> key."""
    objects: tuple[str, tuple[int, int]] | None = None
    """Key, (count, size) of the slots."""


class Episodes(ABC):
    """The episodes of a dataset, read one by one.

    Several threads may call `read` at once.
    """

    def __init__(
        self,
        source: Path,
        layout: Layout,
        *,
        lengths: Sequence[int],
        instructions: Sequence[str],
        fps: float | None = None,
    ) -> None:
        if not lengths:
            raise ValueError(
                f"{source} holds no episodes; expected at least one. Record some, or copy the "
                "dataset again"
            )
        for index, length in enumerate(lengths):
            if length < 1:
                raise ValueError(
                    f"{source}, episode {index}, {layout.action[0]}: expected at least 1 time "
                    f"step, got {length}; remove that episode from the dataset"
                )
        assert len(lengths) == len(instructions)
        self.source = source
        self.layout = layout
        self.fps = fps
        """Control steps per second, if the dataset says so."""
        self.lengths = tuple(int(length) for length in lengths)
        self.instructions = tuple(instructions)
        self._longest_side: int | None = None

    def resized(self, longest_side: int) -> Episodes:
        """Return these episodes with larger pictures scaled down to this longest side."""
        episodes = copy.copy(self)
        episodes._longest_side = longest_side
        return episodes

    @property
    def views(self) -> Mapping[str, tuple[int, int]]:
        """View -> (height, width) of its frames."""
        return {view: self._fitted(size) for view, size in self.layout.views.items()}

    def _fitted(self, size: tuple[int, int]) -> tuple[int, int]:
        longest = self._longest_side
        if longest is None or longest >= max(size):
            return size
        height, width = (max(1, round(side * longest / max(size))) for side in size)
        return height, width

    @property
    def picture_bytes(self) -> int:
        """Bytes of memory of all pictures, as `read` returns them."""
        return sum(self.lengths) * sum(3 * height * width for height, width in self.views.values())

    @property
    def state_size(self) -> int:
        """Size of proprioception, P."""
        return sum(self.layout.state.values())

    @property
    def action_size(self) -> int:
        """Size of an action, A."""
        return self.layout.action[1]

    @property
    def object_slots(self) -> tuple[int, int] | None:
        """(count, size), or None if the dataset has no object slots."""
        return self.layout.objects[1] if self.layout.objects else None

    def __len__(self) -> int:
        return len(self.lengths)

    def __repr__(self) -> str:
        size = f"{len(self)} episodes, {sum(self.lengths)} time steps"
        return f"{type(self).__name__}({str(self.source)!r}: {size})"

    def read(self, index: int, into: Mapping[str, np.ndarray] | None = None) -> EpisodeArrays:
        """Return one whole episode, decoded and checked.

        Args:
            index: Number of the episode.
            into: View -> memory for its pictures; new memory by default.
        """
        if not 0 <= index < len(self):
            raise IndexError(f"{self.source} has the episodes 0 to {len(self) - 1}, got {index}")
        layout, length = self.layout, self.lengths[index]
        decision_steps, answers = self.decisions(index)
        state = [self._numbers(index, key, (size,)) for key, size in layout.state.items()]
        actions = self._numbers(index, layout.action[0], (layout.action[1],))
        if into is None:
            into = {
                view: np.empty((length, *size, 3), np.uint8) for view, size in self.views.items()
            }
        return EpisodeArrays(
            state=np.concatenate(state, axis=1),
            actions=actions,
            images={
                view: self._fill(into[view], index, layout.view_keys[view], size)
                for view, size in layout.views.items()
            },
            objects=self._numbers(index, *layout.objects) if layout.objects else None,
            instruction=self.instructions[index],
            decision_steps=decision_steps,
            answers=answers,
        )

    @abstractmethod
    def array(self, index: int, key: str) -> np.ndarray:
        """Return an array of an episode (T ...) as it is stored, but pictures as uint8."""

    def frames(self, index: int, key: str) -> Iterable[np.ndarray]:
        """Return the pictures of an episode (H, W, 3) one after the other, as they are stored."""
        stored = self.array(index, key)
        self._check_length(index, key, stored)
        return stored

    @abstractmethod
    def location(self, index: int, key: str) -> str:
        """Return the file of that array and where in the file it lies, for messages."""

    def decisions(self, index: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the time steps of an episode's decisions, and their answers."""
        return (), ()

    def _numbers(self, index: int, key: str, shape: tuple[int, ...]) -> np.ndarray:
        stored = self.array(index, key)
        self._check_length(index, key, stored)
        where = f"{self.location(index, key)}, episode {index}"
        length = len(stored)
        if math.prod(stored.shape[1:]) != math.prod(shape) or stored.dtype.kind not in "fiub":
            expected = (length, math.prod(shape))
            raise ValueError(
                f"{where}: expected numbers of shape {expected}, as the dataset announces, got "
                f"{stored.shape} {stored.dtype}; remove that episode, or copy the dataset again"
            )
        with np.errstate(over="ignore"):
            values = np.ascontiguousarray(stored, dtype=np.float32).reshape(length, -1)
        if not np.isfinite(values).all():
            step, dimension = np.argwhere(~np.isfinite(values))[0]
            raise ValueError(
                f"{where}: {values[step, dimension]} at time step {step}, dimension {dimension}; "
                "expected finite numbers. Correct them, or remove that episode from the dataset"
            )
        if (np.abs(values) > LARGEST_NUMBER).any():
            step, dimension = np.argwhere(np.abs(values) > LARGEST_NUMBER)[0]
            raise ValueError(
                f"{where}: {values[step, dimension]:g} at time step {step}, dimension {dimension}; "
                f"expected at most {LARGEST_NUMBER:g}, since larger numbers leave nothing of the "
                "others when they are normalised. Correct it, or remove that episode from the "
                "dataset"
            )
        return values.reshape(length, *shape)

    def _fill(
        self, pictures: np.ndarray, index: int, key: str, size: tuple[int, int]
    ) -> np.ndarray:
        """Put the pictures of an episode, of this announced size, into memory (T, H, W, 3)."""
        scaled = pictures.shape[1:3] != size
        if scaled:
            import_extra("PIL", "train")
            from chameleon_policy.data.resizing import resized
        for step, picture in enumerate(self.frames(index, key)):
            if picture.shape != (*size, 3) or picture.dtype != np.uint8:
                raise ValueError(
                    f"{self.location(index, key)}, episode {index}: expected pictures ({size[0]}, "
                    f"{size[1]}, 3) uint8, as the dataset announces, got {picture.shape} "
                    f"{picture.dtype}; copy the dataset again"
                )
            pictures[step] = resized(picture, pictures.shape[1:3]) if scaled else picture
        return pictures

    def _check_length(self, index: int, key: str, stored: np.ndarray) -> None:
        if len(stored) != self.lengths[index]:
            raise ValueError(
                f"{self.location(index, key)}, episode {index}: expected {self.lengths[index]} "
                f"time steps, as many as {self.layout.action[0]} has, got {len(stored)}; remove "
                "that episode, or copy the dataset again"
            )


def import_extra(module: str, extra: str) -> Any:
    """Import a module that only some formats need."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ImportError(
            f"reading this dataset needs {module}: pip install 'chameleon-policy[{extra}]'"
        ) from error


def check_key(key: str, available: Collection[str], source: Path, kind: str) -> None:
    """Raise a ValueError that lists the available keys if the dataset lacks a key of this kind."""
    if key not in available:
        close = difflib.get_close_matches(key, available, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else "."
        raise ValueError(
            f"{source} has no {kind} {key!r}{hint} Available: {', '.join(available) or 'none'}"
        )
