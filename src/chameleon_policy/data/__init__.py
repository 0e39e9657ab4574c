"""Episodes on disk.

Recordings are written as LeRobot v3.0 datasets, without depending on lerobot. Training data are
read from those, from robomimic's HDF5 files and from Diffusion Policy's zarr buffers, behind one
interface: `open_episodes`, `load_episodes`.

Reading: opening -> episodes -> lerobot_episodes (lerobot_reader, lerobot_metadata), hdf5_episodes,
zarr_episodes; foreign_files says what none of them reads. Writing: recorded_episodes ->
lerobot_writer. Both share schema and video.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chameleon_policy.data.episodes import EpisodeArrays, Episodes, Keys
    from chameleon_policy.data.lerobot_metadata import EpisodeInfo
    from chameleon_policy.data.lerobot_reader import RecordedDataset
    from chameleon_policy.data.lerobot_writer import FileLimits, assemble
    from chameleon_policy.data.opening import load_episodes, open_datasets, open_episodes
    from chameleon_policy.data.recorded_episodes import part_indices, write_part
    from chameleon_policy.data.schema import Schema

__all__ = [
    "EpisodeArrays",
    "EpisodeInfo",
    "Episodes",
    "FileLimits",
    "Keys",
    "RecordedDataset",
    "Schema",
    "assemble",
    "load_episodes",
    "open_datasets",
    "open_episodes",
    "part_indices",
    "write_part",
]

_MODULES = {
    **dict.fromkeys(("EpisodeArrays", "Episodes", "Keys"), "episodes"),
    **dict.fromkeys(("load_episodes", "open_datasets", "open_episodes"), "opening"),
    "EpisodeInfo": "lerobot_metadata",
    "RecordedDataset": "lerobot_reader",
    **dict.fromkeys(("FileLimits", "assemble"), "lerobot_writer"),
    **dict.fromkeys(("part_indices", "write_part"), "recorded_episodes"),
    "Schema": "schema",
}


def __getattr__(name: str) -> Any:
    """Import each name when it is used, so that reading HDF5 needs neither av nor pyarrow."""
    if name in _MODULES:
        return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
