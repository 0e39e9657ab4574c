"""One robot's episode on the server, with its waiting requests."""

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
class PendingRequest:
    """A request and the callback for its reply, which runs in the network's thread."""

    request: Request
    done: Callable[[Reply], None]


@dataclass(eq=False, slots=True)
class Session:
    """An episode. Fields belong to the computing thread unless they say otherwise."""

    name: str
    peer: str = ""
    """Address of its client."""
    secret: str | None = None
    """Text with which its client may continue it on another connection."""
    gone: bool = False
    """Whether its client is gone. Guarded by the engine's lock."""
    waiting: deque[PendingRequest] = field(default_factory=deque)
    """Requests in order. Guarded by the engine's lock."""
    answered_at: float | None = None
    """When the last reply was ready. Guarded by the engine's lock."""
    pause: float = math.inf
    """Recent seconds between a reply and the next request. Guarded by the engine's lock."""
    last_used: float = 0.0
    """Time of the last request or reply. Belongs to the network's thread."""
    unanswered: int = 0
    """Number of requests without a reply. Belongs to the network's thread."""
    slot: int | None = None
    """Slot of `Memories`; None before the session is opened and after it is closed."""
    ticks: int = 0
    """Number of observations in the memory."""
    instruction: Tensor | None = None
    seed: int = 0
    _generator: torch.Generator = field(default_factory=torch.Generator)
    _noise: Tensor | None = None

    def note_return(self) -> None:
        """Note that a request came while none was waiting."""
        if self.answered_at is not None:
            pause = time.perf_counter() - self.answered_at
            self.pause = pause if self.pause == math.inf else (self.pause + pause) / 2

    def begin(self, slot: int, seed: int | None, instruction: Tensor | None) -> int:
        """Begin the episode in a slot; return the seed, which is drawn if there is none."""
        self.slot, self.instruction = slot, instruction
        self.seed = secrets.randbits(63) if seed is None else seed
        self._generator.manual_seed(self.seed)
        return self.seed

    def noise(self, horizon: int, action: int) -> Tensor:
        """Return the noise of the next chunk (H A), the same until `use_noise`."""
        if self._noise is None:
            self._noise = torch.randn((horizon, action), generator=self._generator)
        return self._noise

    def use_noise(self) -> None:
        """Note that a chunk was computed; the next one begins with other noise."""
        self._noise = None
