"""Seeds, shapes and cameras of the measurements, on a GPU and on a CPU."""

from __future__ import annotations

from dataclasses import dataclass

from chameleon_policy import Features, Language, View

SEED = 0
EULER_STEPS = (1, 2, 4, 8, 16, 50)


@dataclass(frozen=True)
class Sizes:
    """Shapes to measure: those of the policy's training on a GPU, small ones on a CPU."""

    preset: str
    image: int
    episodes: int
    steps: int
    curve_episodes: int
    curve_steps: int
    ticks: int
    ssm: tuple[tuple[int, int], ...]
    lengths: tuple[int, ...]
    later: tuple[int, ...]


GPU = Sizes(
    "paper",
    128,
    64,
    64,
    8,
    200,
    1000,
    ((4736, 64), (2176, 64), (2368, 256), (2368, 512)),
    (32, 128, 512, 2048),
    (10, 1_000, 100_000),
)
CPU = Sizes("nano", 64, 2, 16, 2, 5, 20, ((16, 64), (8, 256)), (32, 128), (10, 1_000))


def camera_features(size: int) -> Features:
    """Return features with two cameras, as on Camo's robot."""
    return Features(
        views=(
            View(name="third", height=size, width=size),
            View(name="wrist", height=size, width=size),
        ),
        proprioception=10,
        action=10,
        horizon=16,
        language=Language(width=768, encoder="none"),
    )
