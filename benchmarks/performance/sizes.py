"""Seeds, shapes and cameras of the measurements, on a GPU and on a CPU."""

from __future__ import annotations

from dataclasses import dataclass

from chameleon_policy import Features, Language, View

SEED = 0
EULER_STEPS = (1, 2, 4, 8, 16, 50)


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Shapes to measure: those of the policy's training on a GPU, small ones on a CPU."""

    preset: str
    image: int
    """Height and width of the training images."""
    episodes: int
    steps: int
    """Batch of a training step: episodes, and time steps of each."""
    curve_episodes: int
    curve_steps: int
    """Batch and number of the steps whose losses are compared."""
    ticks: int
    """Calls of `observe` and `act` that are timed."""
    ssm: tuple[tuple[int, int], ...]
    """Streams and steps of the state-space layer."""
    lengths: tuple[int, ...]
    """Time steps of an episode for the memory layers."""
    later: tuple[int, ...]
    """Control steps after which `observe` is timed again."""


GPU = Sizes(
    preset="paper",
    image=128,
    episodes=64,
    steps=64,
    curve_episodes=8,
    curve_steps=200,
    ticks=1000,
    ssm=((4736, 64), (2176, 64), (2368, 256), (2368, 512)),
    lengths=(32, 128, 512, 2048),
    later=(10, 1_000, 100_000),
)
CPU = Sizes(
    preset="nano",
    image=64,
    episodes=2,
    steps=16,
    curve_episodes=2,
    curve_steps=5,
    ticks=20,
    ssm=((16, 64), (8, 256)),
    lengths=(32, 128),
    later=(10, 1_000),
)


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
