"""One robot's episode on the server, and the requests that wait in it."""

from __future__ import annotations

import math
import secrets
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from chameleon_policy.serve.requests import Request

Reply = dict[str, Any]


@dataclass(eq=False, slots=True)
class Job:
    """A request and who waits for its reply; `done` is called in the thread of the network."""

    request: Request
    done: Callable[[Reply], None]


@dataclass(eq=False, slots=True)
class Session:
    """An episode. What has no remark belongs to the thread that computes."""

    name: str
    waiting: deque[Job] = field(default_factory=deque)
    """In order. Guarded by the engine's lock."""
    answered_at: float | None = None
    """When the last reply was ready. Guarded by the engine's lock."""
    pause: float = math.inf
    """Seconds between a reply and the next request, lately. Guarded by the engine's lock."""
    last_used: float = 0.0
    """Belongs to the network's thread, as does what follows."""
    unanswered: int = 0

    slot: int | None = None
    """Of `Memories`; None before it is opened and after it is closed."""
    ticks: int = 0
    """Observations that the memory has."""
    instruction: Tensor | None = None
    _generator: torch.Generator = field(default_factory=torch.Generator)
    _noise: Tensor | None = None

    def came_back(self) -> None:
        """A request has come, and none was waiting."""
        if self.answered_at is not None:
            pause = time.perf_counter() - self.answered_at
            self.pause = pause if self.pause == math.inf else (self.pause + pause) / 2

    def begin(self, slot: int, seed: int | None, instruction: Tensor | None) -> int:
        """Start with this memory; returns the seed, which is drawn if there is none."""
        self.slot, self.instruction = slot, instruction
        seed = secrets.randbits(63) if seed is None else seed
        self._generator.manual_seed(seed)
        return seed

    def noise(self, horizon: int, action: int) -> Tensor:
        """Of the next chunk. It stays the same until `acted`: a chunk that failed uses nothing
        up.
        """
        if self._noise is None:
            self._noise = torch.randn((horizon, action), generator=self._generator)
        return self._noise

    def acted(self) -> None:
        """The noise has been used."""
        self._noise = None
