"""The contents of a dataset's frames, and the layout of LeRobot v3.0 datasets."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

CODEBASE_VERSION = "v3.0"
IMAGE_PREFIX = "observation.images."

INFO_PATH = "meta/info.json"
STATS_PATH = "meta/stats.json"
TASKS_PATH = "meta/tasks.parquet"
CHUNK_AND_FILE = "chunk-{chunk_index:03d}/file-{file_index:03d}"
EPISODES_PATH = f"meta/episodes/{CHUNK_AND_FILE}.parquet"
DATA_PATH = f"data/{CHUNK_AND_FILE}.parquet"
VIDEO_PATH = f"videos/{{video_key}}/{CHUNK_AND_FILE}.mp4"

# the columns that LeRobot adds to every dataset
INDEX_FEATURES = {
    "timestamp": "float32",
    "frame_index": "int64",
    "episode_index": "int64",
    "index": "int64",
    "task_index": "int64",
}

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*")


def image_key(view: str) -> str:
    """Return the feature that holds the frames of a view: `third` -> `observation.images.third`."""
    return IMAGE_PREFIX + view


@dataclass(frozen=True, kw_only=True)
class Schema:
    """The contents of every frame of a dataset."""

    fps: float
    """Control steps per second, not necessarily an integer."""
    robot_type: str
    views: Mapping[str, tuple[int, int]]
    """View -> (height, width) of its frames: `third` is the feature `observation.images.third`. May
    be empty.
    """
    vectors: Mapping[str, tuple[str, ...]]
    """Feature -> names of its elements: `observation.state`, `action`, ..."""
    recorded: bool = field(default=False, compare=False, repr=False)
    """Whether a dataset with this schema exists already; only the schema of a new dataset has to be
    one that we can write."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.fps) and self.fps > 0):
            raise ValueError(
                f"Schema.fps must be a positive number of frames per second, got {self.fps}"
            )
        if not self.robot_type:
            raise ValueError("Schema.robot_type must name the robot, got an empty string")
        if not self.recorded:
            self._check_writable()

    def _check_writable(self) -> None:
        for view, size in self.views.items():
            self._check_name("view", view)
            if len(size) != 2 or any(not isinstance(n, int) or n < 2 or n % 2 for n in size):
                raise ValueError(
                    f"view {view!r}: height and width must be even (the videos are yuv420p, which "
                    f"halves both for colour), got {tuple(size)}; render or crop to an even size"
                )
        if not self.vectors:
            raise ValueError(
                "Schema.vectors must name at least one feature, for example 'action'; got none"
            )
        for key, names in self.vectors.items():
            self._check_name("vector", key)
            if key in INDEX_FEATURES or key.startswith(IMAGE_PREFIX):
                taken = ", ".join(INDEX_FEATURES)
                raise ValueError(
                    f"vector {key!r} has a reserved name: {taken} and {IMAGE_PREFIX}* are "
                    "LeRobot's own"
                )
            if isinstance(names, str) or not names or len(set(names)) != len(names):
                raise ValueError(
                    f"vector {key!r} needs one distinct name per element, got {names!r}"
                )

    @staticmethod
    def _check_name(kind: str, name: str) -> None:
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"{kind} {name!r}: a name is made of letters, digits, '_', '-' and '.', since it "
                "becomes a path"
            )

    @property
    def rate(self) -> Fraction:
        """Frames per second as a ratio of small integers, so that video times are exact."""
        return Fraction(self.fps).limit_denominator(1001)

    def to_json(self) -> dict[str, Any]:
        """Return the schema in JSON's types, which are equal exactly if two schemas are."""
        return {
            "fps": float(self.fps),
            "robot_type": self.robot_type,
            "views": {view: list(size) for view, size in self.views.items()},
            "vectors": {key: list(names) for key, names in self.vectors.items()},
        }

    @classmethod
    def from_info(cls, info: Mapping[str, Any]) -> Schema:
        """Return the schema of a dataset from its meta/info.json.

        Features that are neither pictures nor vectors of floats are left out.
        """
        views, vectors = {}, {}
        for key, feature in info["features"].items():
            shape = tuple(feature["shape"])
            if feature["dtype"] in ("video", "image"):
                size = _picture_size(feature)
                if size is not None:
                    views[key.removeprefix(IMAGE_PREFIX)] = size
            elif (
                feature["dtype"] in ("float32", "float64")
                and len(shape) == 1
                and key not in INDEX_FEATURES
            ):
                vectors[key] = _element_names(feature.get("names"), shape[0])
        robot_type = info.get("robot_type") or "unknown"
        return cls(
            fps=info["fps"], robot_type=robot_type, views=views, vectors=vectors, recorded=True
        )


def _picture_size(feature: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return (height, width) of a video or image feature, or None if it is not RGB (depth maps)."""
    shape, names = tuple(feature["shape"]), feature.get("names")
    info = feature.get("info") or feature.get("video_info")
    if len(shape) != 3 or (isinstance(info, dict) and info.get("video.is_depth_map")):
        return None
    if isinstance(names, list) and len(names) == 3 and "height" in names and "width" in names:
        height, width = names.index("height"), names.index("width")
    else:
        height, width = (1, 2) if shape[0] == 3 and shape[2] != 3 else (0, 1)
    return (shape[height], shape[width]) if shape[3 - height - width] == 3 else None


def _element_names(names: Any, size: int) -> tuple[str, ...]:
    """Return the names of a vector's elements, from a list, a dict with a list, or nothing."""
    if isinstance(names, dict):
        names = [name for group in names.values() if isinstance(group, list) for name in group]
    plain = isinstance(names, list) and all(isinstance(name, str | int) for name in names)
    if plain and len(names) == len(set(map(str, names))) == size:
        return tuple(map(str, names))
    return tuple(str(i) for i in range(size))
