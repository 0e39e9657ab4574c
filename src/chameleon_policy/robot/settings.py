"""Settings of the robot loop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from chameleon_policy.robot.clock import Clock
from chameleon_policy.robot.plan import Plan


@dataclass(frozen=True, kw_only=True)
class LoopOptions:
    """Settings of the loop with a default."""

    blend: int = 2
    """Ticks over which a new chunk takes over from the last one."""
    steps: int | None = None
    """Sampling steps of a chunk (default: the policy's own number)."""
    patience: float = 0.0
    """Seconds for which a tick waits for a chunk that is due, before it goes on with the last
    one."""
    timeout: float = 1.0
    """Seconds by which the memory may fall behind before the robot is stopped."""
    seconds: float | None = None
    """Longest episode; a simulated one ends by itself."""


@dataclass(frozen=True, kw_only=True)
class LoopSettings(LoopOptions):
    """Settings of the loop."""

    rate: float
    """Ticks per second."""
    executed: int
    """Ticks from one chunk to the next."""
    views: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Height and width of the pictures that the policy sees."""

    def __post_init__(self) -> None:
        Clock(self.rate)
        Plan(executed=self.executed, blend=self.blend)
        for name, smallest in (("patience", 0.0), ("timeout", 1e-3), ("seconds", 1e-3)):
            value = getattr(self, name)
            if value is not None and not value >= smallest:
                raise ValueError(f"--{name} must be at least {smallest:g} seconds, got {value:g}")

    @property
    def ticks(self) -> int | None:
        """Longest episode in ticks."""
        return None if self.seconds is None else max(1, round(self.seconds * self.rate))
