"""Episodes on disk.

Recordings are written as LeRobot v3.0 datasets, without depending on lerobot. Training data are
read from those, from robomimic's HDF5 files and from Diffusion Policy's zarr buffers, behind one
interface: `open_episodes`, `load_episodes`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chameleon_policy.data.episodes import (
        EpisodeArrays,
        Episodes,
        Keys,
        load_episodes,
        open_episodes,
    )
    from chameleon_policy.data.lerobot_reader import Episode, RecordedDataset
    from chameleon_policy.data.lerobot_writer import FileLimits, assemble
    from chameleon_policy.data.parts import part_indices, write_part
    from chameleon_policy.data.schema import Schema

__all__ = [
    "Episode",
    "EpisodeArrays",
    "Episodes",
    "FileLimits",
    "Keys",
    "RecordedDataset",
    "Schema",
    "assemble",
    "load_episodes",
    "open_episodes",
    "part_indices",
    "write_part",
]

_HOMES = {
    **dict.fromkeys(
        ("EpisodeArrays", "Episodes", "Keys", "load_episodes", "open_episodes"), "episodes"
    ),
    **dict.fromkeys(("Episode", "RecordedDataset"), "lerobot_reader"),
    **dict.fromkeys(("FileLimits", "assemble"), "lerobot_writer"),
    **dict.fromkeys(("part_indices", "write_part"), "parts"),
    "Schema": "schema",
}


def __getattr__(name: str) -> Any:
    """Each name is loaded when it is used: who reads HDF5 need not have what LeRobot datasets take,
    av and pyarrow.
    """
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
