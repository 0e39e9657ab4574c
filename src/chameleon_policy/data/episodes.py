"""Whole episodes in memory, from whatever format they are stored in: the reading side of training
data.

`open_episodes` finds out what lies at a path and announces it (views, sizes, lengths) without
decoding anything; `Episodes.read` gives one episode; `load_episodes` gives all. A format only says
where its arrays lie: what an episode must fulfil is checked here, once for all formats.
"""

from __future__ import annotations

import difflib
import importlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro


@dataclass(frozen=True, kw_only=True, eq=False)
class EpisodeArrays:
    """One episode: T time steps, the same T in every array."""

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
    """Time steps at which a Camo episode asks for a decision; empty for other datasets."""
    answers: tuple[int, ...] = ()
    """What each of these decisions asks for: the number of a plate, a cup or a shaker."""

    @property
    def length(self) -> int:
        """T."""
        return len(self.actions)


@dataclass(frozen=True, kw_only=True)
class Keys:
    """Which arrays of a dataset to use. None: by the convention of its format."""

    state: Annotated[tuple[str, ...] | None, tyro.conf.arg(name="state-keys")] = None
    """Arrays that make up proprioception, joined in this order."""
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
                    f"Keys.{name} must be a tuple of different keys, such as ('a', 'b'); got {chosen!r}"
                )
        if self.state == ():
            raise ValueError(
                "Keys.state must name at least one key, or be None for the format's convention; got ()"
            )


DEFAULT_KEYS = Keys()


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Which arrays of a dataset are used, and the shape of each at one time step."""

    state: Mapping[str, int]
    """Key -> numbers; joined in this order."""
    action: tuple[str, int]
    views: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """View -> (height, width)."""
    view_keys: Mapping[str, str] = field(default_factory=dict)
    """View -> key."""
    objects: tuple[str, tuple[int, int]] | None = None
    """Key, (count, size) of its slots."""


class Episodes(ABC):
    """The episodes of a dataset, announced but not yet read. `read` may be called by several
    threads at once.
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
                f"{source} holds no episodes; expected at least one. Record some, or copy the dataset again"
            )
        for index, length in enumerate(lengths):
            if length < 1:
                raise ValueError(
                    f"{source}, episode {index}, {layout.action[0]}: expected at least 1 time step, got {length}; "
                    "remove that episode from the dataset"
                )
        assert len(lengths) == len(instructions)
        self.source = source
        self.layout = layout
        self.fps = fps
        """Control steps per second, where the dataset says so."""
        self.lengths = tuple(int(length) for length in lengths)
        self.instructions = tuple(instructions)

    @property
    def views(self) -> Mapping[str, tuple[int, int]]:
        """View -> (height, width) of its frames."""
        return self.layout.views

    @property
    def state_size(self) -> int:
        """P."""
        return sum(self.layout.state.values())

    @property
    def action_size(self) -> int:
        """A."""
        return self.layout.action[1]

    @property
    def object_slots(self) -> tuple[int, int] | None:
        """(count, size), or None if the dataset has no object slots."""
        return self.layout.objects[1] if self.layout.objects else None

    def __len__(self) -> int:
        return len(self.lengths)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.source)!r}: {len(self)} episodes, {sum(self.lengths)} time steps)"

    def read(self, index: int) -> EpisodeArrays:
        """One whole episode, decoded and checked."""
        if not 0 <= index < len(self):
            raise IndexError(f"{self.source} has the episodes 0 to {len(self) - 1}, got {index}")
        layout = self.layout
        decision_steps, answers = self._decisions(index)
        state = [self._numbers(index, key, (size,)) for key, size in layout.state.items()]
        return EpisodeArrays(
            state=np.concatenate(state, axis=1),
            actions=self._numbers(index, layout.action[0], (layout.action[1],)),
            images={
                view: self._pictures(index, layout.view_keys[view], size)
                for view, size in layout.views.items()
            },
            objects=self._numbers(index, *layout.objects) if layout.objects else None,
            instruction=self.instructions[index],
            decision_steps=decision_steps,
            answers=answers,
        )

    @abstractmethod
    def _array(self, index: int, key: str) -> np.ndarray:
        """An episode's part of an array, (T, ...), as it is stored; pictures as uint8."""

    @abstractmethod
    def _place(self, index: int, key: str) -> str:
        """File and place of that array, for messages."""

    def _decisions(self, index: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Time steps of an episode's decisions, and their answers."""
        return (), ()

    def _numbers(self, index: int, key: str, shape: tuple[int, ...]) -> np.ndarray:
        stored = self._array(index, key)
        self._check_length(index, key, stored)
        where = f"{self._place(index, key)}, episode {index}"
        length = len(stored)
        if math.prod(stored.shape[1:]) != math.prod(shape) or stored.dtype.kind not in "fiub":
            expected = (length, math.prod(shape))
            raise ValueError(
                f"{where}: expected numbers of shape {expected}, as the dataset announces, got {stored.shape} "
                f"{stored.dtype}; remove that episode, or copy the dataset again"
            )
        with np.errstate(over="ignore"):
            values = np.ascontiguousarray(stored, dtype=np.float32).reshape(length, -1)
        if not np.isfinite(values).all():
            step, dimension = np.argwhere(~np.isfinite(values))[0]
            raise ValueError(
                f"{where}: {values[step, dimension]} at time step {step}, dimension {dimension}; expected finite numbers. "
                "Correct them, or remove that episode from the dataset"
            )
        return values.reshape(length, *shape)

    def _pictures(self, index: int, key: str, size: tuple[int, int]) -> np.ndarray:
        stored = self._array(index, key)
        self._check_length(index, key, stored)
        if stored.shape[1:] != (*size, 3) or stored.dtype != np.uint8:
            raise ValueError(
                f"{self._place(index, key)}, episode {index}: expected pictures (T, {size[0]}, {size[1]}, 3) uint8, as the "
                f"dataset announces, got {stored.shape} {stored.dtype}; copy the dataset again"
            )
        return stored

    def _check_length(self, index: int, key: str, stored: np.ndarray) -> None:
        if len(stored) != self.lengths[index]:
            raise ValueError(
                f"{self._place(index, key)}, episode {index}: expected {self.lengths[index]} time steps, as many as "
                f"{self.layout.action[0]} has, got {len(stored)}; remove that episode, or copy the dataset again"
            )


def load_episodes(
    episodes: Episodes, workers: int = 2, progress: Callable[[int], object] = lambda done: None
) -> list[EpisodeArrays]:
    """All episodes, in order, held in memory.

    Args:
        episodes: What to load. workers: Threads; decoders of video and of compressed arrays run
        beside each other. progress: Called with the number of episodes that are loaded, at the
        beginning and after each one.
    """
    if workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}")
    loaded: list[EpisodeArrays] = []
    progress(0)
    pool = ThreadPoolExecutor(workers, thread_name_prefix="load-episodes")
    try:
        for arrays in pool.map(episodes.read, range(len(episodes))):
            loaded.append(arrays)
            progress(len(loaded))
    finally:
        # After an error, or Ctrl-C, nobody waits for the episodes that have not been begun.
        pool.shutdown(wait=True, cancel_futures=True)
    return loaded


FORMATS = (
    "a LeRobot v3.0 dataset (a folder with meta/info.json), a robomimic or LIBERO file (.hdf5, .h5), or a replay buffer of "
    "Diffusion Policy (a .zarr folder or .zarr.zip file with data/ and meta/episode_ends)"
)


def open_episodes(path: Path | str, keys: Keys = DEFAULT_KEYS) -> Episodes:
    """The episodes at a path, in any of the formats that `FORMATS` lists.

    >>> episodes = open_episodes("data/shell-game")                    # doctest: +SKIP
    >>> episodes.views, episodes.state_size, len(episodes)             # doctest: +SKIP
    ({'third': (128, 128), 'wrist': (128, 128)}, 10, 120)
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(
            f"{path} does not exist; expected {FORMATS}. Correct the path, or record demonstrations: "
            f"chameleon record clean-plate --out {path}"
        )
    # Each reader is loaded when it is needed: nobody has to install what other formats need.
    if path.is_file() and path.suffix.lower() in (".hdf5", ".h5"):
        from chameleon_policy.data.hdf5_episodes import Hdf5Episodes

        return Hdf5Episodes(path, keys)
    if path.name.lower().endswith(".zarr.zip") or _is_zarr(path):
        from chameleon_policy.data.zarr_episodes import ZarrEpisodes

        return ZarrEpisodes(path, keys)
    # Without meta/info.json the recording is unfinished, and the LeRobot reader tells how to go on
    # with it.
    if any(
        (path / name).exists()
        for name in ("meta/info.json", "meta/episodes", "camo/recording.json")
    ):
        for module in ("pyarrow", "av", "PIL"):
            import_extra(module, "camo")
        from chameleon_policy.data.lerobot_episodes import LeRobotEpisodes

        return LeRobotEpisodes(path, keys)
    if path.is_dir():
        names = sorted(entry.name for entry in path.iterdir())
        found = (
            f"a folder with {', '.join(names[:8])}{', ...' if len(names) > 8 else ''}"
            if names
            else "an empty folder"
        )
    else:
        found = f"a file that ends in {path.suffix!r}"
    raise ValueError(f"{path}: expected {FORMATS}; found {found}. Give the path of one dataset")


def _is_zarr(path: Path) -> bool:
    marks = (".zgroup", "zarr.json", "meta/episode_ends")
    return path.is_dir() and (
        path.suffix.lower() == ".zarr" or any((path / mark).exists() for mark in marks)
    )


def import_extra(module: str, extra: str) -> Any:
    """A module that only some formats need."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ImportError(
            f"reading this dataset needs {module}: pip install 'chameleon-policy[{extra}]'"
        ) from error


def check_key(key: str, available: Collection[str], source: Path, what: str) -> None:
    """Refuse a key that the dataset does not have, naming those that it has."""
    if key not in available:
        close = difflib.get_close_matches(key, available, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else "."
        raise ValueError(
            f"{source} has no {what} {key!r}{hint} Available: {', '.join(available) or 'none'}"
        )
