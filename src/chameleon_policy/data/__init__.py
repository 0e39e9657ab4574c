"""Episodes on disk: LeRobot v3.0 datasets, written part by part and read back, without depending on lerobot."""

from chameleon_policy.data.lerobot_reader import Episode, RecordedDataset
from chameleon_policy.data.lerobot_writer import FileLimits, assemble
from chameleon_policy.data.parts import part_indices, write_part
from chameleon_policy.data.schema import Schema

__all__ = ["Episode", "FileLimits", "RecordedDataset", "Schema", "assemble", "part_indices", "write_part"]
