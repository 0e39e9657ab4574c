"""Several datasets as one: a policy for several tasks is trained on all of them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

import numpy as np

from chameleon_policy.data.episodes import DEFAULT_KEYS, Episodes, Keys, open_episodes


def open_datasets(paths: Sequence[Path | str], keys: Keys = DEFAULT_KEYS) -> Episodes:
    """The episodes of one dataset, or of several one behind the other."""
    if not paths:
        raise ValueError("expected the path of at least one dataset, got none")
    datasets = [open_episodes(path, keys) for path in paths]
    return datasets[0] if len(datasets) == 1 else JoinedEpisodes(datasets)


class JoinedEpisodes(Episodes):
    """The episodes of several datasets with the same views and numbers."""

    def __init__(self, datasets: Sequence[Episodes]) -> None:
        first = datasets[0]
        for other in datasets[1:]:
            if (other.layout, other.fps) != (first.layout, first.fps):
                raise ValueError(
                    f"{other.source} cannot be joined with {first.source}: it has {_described(other)}, not "
                    f"{_described(first)}. Train on datasets that were recorded alike"
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

    def _home(self, index: int) -> tuple[Episodes, int]:
        number = bisect_right(self._firsts, index) - 1
        return self.datasets[number], index - self._firsts[number]

    def _array(self, index: int, key: str) -> np.ndarray:
        dataset, place = self._home(index)
        return dataset._array(place, key)

    def _place(self, index: int, key: str) -> str:
        dataset, place = self._home(index)
        return dataset._place(place, key)

    def _decisions(self, index: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        dataset, place = self._home(index)
        return dataset._decisions(place)


def _described(episodes: Episodes) -> str:
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
