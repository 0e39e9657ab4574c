"""The shapes of the data: the part of a policy's configuration that robot and dataset decide."""

from __future__ import annotations

import math
from dataclasses import dataclass

CROP_FRACTION = 6 / 7
ENCODER_STRIDE = 32


LARGEST, LONGEST, LARGEST_PICTURE, MOST_VIEWS = 65_536, 4_096, 16_384, 64
"""Most numbers of a vector, actions of a chunk or object slots, pixels of a side, and cameras.
Nothing sensible is near them; a config.json that asks for more is refused before it is built.
"""


def _require_positive(owner: str, at_most: int = LARGEST, **values: int) -> None:
    for name, value in values.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{owner}.{name} must be at least 1, got {value}")
        if value > at_most:
            raise ValueError(f"{owner}.{name} must be at most {at_most}, got {value}")


@dataclass(frozen=True, kw_only=True)
class View:
    """One camera: its name in the observation and the size of its frames."""

    name: str
    height: int
    width: int

    def __post_init__(self) -> None:
        _require_positive(
            f"View {self.name!r:.80}", LARGEST_PICTURE, height=self.height, width=self.width
        )

    @property
    def crop(self) -> tuple[int, int]:
        """Height and width that the encoder sees: 6/7 of the frame (192 of 224, 110 of 128)."""
        return round(self.height * CROP_FRACTION), round(self.width * CROP_FRACTION)

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patch tokens (6 x 6 at 224, 4 x 4 at 128)."""
        height, width = self.crop
        return math.ceil(height / ENCODER_STRIDE), math.ceil(width / ENCODER_STRIDE)

    @property
    def tokens(self) -> int:
        """Number of patch tokens N_v."""
        rows, columns = self.grid
        return rows * columns


@dataclass(frozen=True, kw_only=True)
class ObjectSlots:
    """State observations in place of images: `count` slots of `size` numbers, a token each."""

    count: int
    size: int

    def __post_init__(self) -> None:
        _require_positive("ObjectSlots", LONGEST, count=self.count)
        _require_positive("ObjectSlots", size=self.size)


@dataclass(frozen=True, kw_only=True)
class Language:
    """The width of instruction embeddings and the name of their encoder (see `language.py`)."""

    width: int
    encoder: str

    def __post_init__(self) -> None:
        _require_positive("Language", width=self.width)


@dataclass(frozen=True, kw_only=True)
class Features:
    """The shapes of observations and actions that a policy is built for."""

    proprioception: int
    """Dimensions of s_t."""
    action: int
    """d_a, dimensions of one action."""
    horizon: int
    """H, actions in one predicted chunk."""
    views: tuple[View, ...] = ()
    objects: ObjectSlots | None = None
    language: Language | None = None
    """None: the task has no instructions, and a learned null token takes their position."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "views", tuple(self.views))  # accepts a list, too
        _require_positive("Features", proprioception=self.proprioception, action=self.action)
        _require_positive("Features", LONGEST, horizon=self.horizon)
        if len(self.views) > MOST_VIEWS:
            raise ValueError(
                f"Features.views must be at most {MOST_VIEWS} cameras, got {len(self.views)}"
            )
        if not self.views and self.objects is None:
            raise ValueError(
                "Features describe a policy that sees nothing: give at least one View in `views`, "
                "or `objects`"
            )
        names = [view.name for view in self.views]
        if len(set(names)) != len(names):
            raise ValueError(f"Features.views must have different names, got {names!s:.80}")

    @property
    def executed(self) -> int:
        """Default number of actions of a chunk to execute before the next one: half of them."""
        return max(1, self.horizon // 2)

    @property
    def tokens(self) -> int:
        """N = sum of N_v (and object slots) + 2, for the proprioception and the language token."""
        objects = 0 if self.objects is None else self.objects.count
        return sum(view.tokens for view in self.views) + objects + 2
