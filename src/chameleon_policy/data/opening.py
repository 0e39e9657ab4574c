"""Opening and loading datasets of every format, and several datasets as one."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from pathlib import Path

import numpy as np

from chameleon_policy.data.episodes import (
    DEFAULT_KEYS,
    EpisodeArrays,
    Episodes,
    Keys,
    import_extra,
)
from chameleon_policy.data.memory import check_memory

FORMATS = (
    "a LeRobot v3.0 dataset (a folder with meta/info.json), a robomimic or LIBERO file (.hdf5, "
    ".h5), or a replay buffer of Diffusion Policy (a .zarr folder or .zarr.zip file with data/ and "
    "meta/episode_ends)"
)

_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]+:/")  # Path shortens :// to :/


def open_episodes(path: Path | str, keys: Keys = DEFAULT_KEYS) -> Episodes:
    """Open the dataset at a path, in one of the formats that `FORMATS` lists.

    >>> episodes = open_episodes("data/shell-game")                    # doctest: +SKIP
    >>> episodes.views, episodes.state_size, len(episodes)             # doctest: +SKIP
    ({'third': (128, 128), 'wrist': (128, 128)}, 10, 120)
    """
    path = Path(path)
    if _ADDRESS.match(str(path)) and not path.exists():
        raise ValueError(
            f"{path} is an address; datasets are read from this machine. Download it, and give the "
            "path of the folder or file"
        )
    if not path.exists():
        raise FileNotFoundError(
            f"{path} does not exist; expected {FORMATS}. Correct the path (names of the hub are "
            "not taken; lerobot keeps its datasets in ~/.cache/huggingface/lerobot), or record "
            f"demonstrations: chameleon record clean-plate --out {path}"
        )
    # Readers are imported when they are needed, so that each format needs only its own packages.
    if path.is_file() and path.suffix.lower() in (".hdf5", ".h5"):
        from chameleon_policy.data.hdf5_episodes import Hdf5Episodes

        return Hdf5Episodes(path, keys)
    if path.name.lower().endswith(".zarr.zip") or _is_zarr(path):
        from chameleon_policy.data.zarr_episodes import ZarrEpisodes

        return ZarrEpisodes(path, keys)
    if _is_lerobot(path):
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


def _is_lerobot(path: Path) -> bool:
    """Return whether a folder is a LeRobot dataset, complete or not.

    A suite's recording without meta/info.json is unfinished; the reader says how to continue it.
    """
    marks = ("meta/info.json", "meta/episodes", "*/recording.json")
    return path.is_dir() and any(any(path.glob(mark)) for mark in marks)


def _is_zarr(path: Path) -> bool:
    marks = (".zgroup", "zarr.json", "meta/episode_ends")
    return path.is_dir() and (
        path.suffix.lower() == ".zarr" or any((path / mark).exists() for mark in marks)
    )


def open_datasets(paths: Sequence[Path | str], keys: Keys = DEFAULT_KEYS) -> Episodes:
    """Open one dataset, or several as one."""
    if not paths:
        raise ValueError("expected the path of at least one dataset, got none")
    datasets = [open_episodes(path, keys) for path in paths]
    return datasets[0] if len(datasets) == 1 else JoinedEpisodes(datasets)


def load_episodes(
    episodes: Episodes, workers: int = 2, progress: Callable[[int], object] = lambda done: None
) -> list[EpisodeArrays]:
    """Load all episodes into memory, in order.

    Args:
        episodes: The dataset.
        workers: Threads; decoders of video and of compressed arrays run in parallel.
        progress: Called with the number of loaded episodes, at the beginning and after each one.
    """
    if workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}")
    check_memory(
        episodes.picture_bytes,
        f"the pictures of {episodes.source}",
        "give a smaller --size, fewer --view-keys or fewer datasets",
    )
    # All pictures of a view lie one after the other, so that they need not be copied to be joined.
    starts = [0, *accumulate(episodes.lengths)]
    pictures = {
        view: np.empty((starts[-1], *size, 3), np.uint8) for view, size in episodes.views.items()
    }

    def read(index: int) -> EpisodeArrays:
        rows = slice(starts[index], starts[index + 1])
        return episodes.read(index, {view: memory[rows] for view, memory in pictures.items()})

    loaded: list[EpisodeArrays] = []
    progress(0)
    pool = ThreadPoolExecutor(workers, thread_name_prefix="load-episodes")
    try:
        for arrays in pool.map(read, range(len(episodes))):
            loaded.append(arrays)
            progress(len(loaded))
    finally:
        # After an error or Ctrl-C, episodes that have not been started are not loaded.
        pool.shutdown(wait=True, cancel_futures=True)
    return loaded


class JoinedEpisodes(Episodes):
    """The episodes of several datasets with equal layouts, one dataset after the other."""

    def __init__(self, datasets: Sequence[Episodes]) -> None:
        first = datasets[0]
        for other in datasets[1:]:
            if (other.layout, other.fps) != (first.layout, first.fps):
                raise ValueError(
                    f"{other.source} cannot be joined with {first.source}: it has "
                    f"{_description(other)}, not {_description(first)}. Train on datasets that "
                    "were recorded alike"
                )
        super().__init__(
            first.source,
            first.layout,
            lengths=[length for dataset in datasets for length in dataset.lengths],
            instructions=[text for dataset in datasets for text in dataset.instructions],
            fps=first.fps,
        )
        self.datasets = tuple(datasets)
        self._firsts = [0, *accumulate(len(dataset) for dataset in datasets)]

    def _find(self, index: int) -> tuple[Episodes, int]:
        """Return the dataset of an episode, and the episode's index in that dataset."""
        dataset = bisect_right(self._firsts, index) - 1
        return self.datasets[dataset], index - self._firsts[dataset]

    def array(self, index: int, key: str) -> np.ndarray:
        """Return an array of an episode as it is stored, but pictures as uint8."""
        dataset, index = self._find(index)
        return dataset.array(index, key)

    def frames(self, index: int, key: str) -> Iterable[np.ndarray]:
        """Return the pictures of an episode one after the other, as they are stored."""
        dataset, index = self._find(index)
        return dataset.frames(index, key)

    def location(self, index: int, key: str) -> str:
        """Return the location of that array, for messages."""
        dataset, index = self._find(index)
        return dataset.location(index, key)

    def decisions(self, index: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the time steps of an episode's decisions, and their answers."""
        dataset, index = self._find(index)
        return dataset.decisions(index)


def _description(episodes: Episodes) -> str:
    layout = episodes.layout
    views = (
        ", ".join(f"{name} {height} x {width}" for name, (height, width) in layout.views.items())
        or "no views"
    )
    objects = f", {layout.objects[1][0]} object slots" if layout.objects else ""
    state = " and ".join(f"{key} of {size}" for key, size in layout.state.items())
    return (
        f"{views}{objects}, {state}, {layout.action[0]} of {layout.action[1]} at {episodes.fps} fps"
    )
