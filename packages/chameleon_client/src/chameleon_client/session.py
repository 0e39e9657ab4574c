"""One episode on a server: its memory, its noise, its ticks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

if TYPE_CHECKING:
    from chameleon_client.client import Client


class Session:
    """Made by `Client.open`. Calls may come from several threads; observations are numbered in the
    order of the calls.
    """

    def __init__(self, client: Client, name: str, seed: int) -> None:
        self._client, self.name = client, name
        self.seed = seed
        """Decides the noise of every chunk; drawn by the server if it was not given."""
        self._lock = threading.Lock()
        self._counting = threading.Lock()
        self._ticks = self._sent = 0

    @property
    def ticks(self) -> int:
        """Observations that the memory has, as far as the server has told."""
        return self._ticks

    def observe(
        self,
        *,
        proprioception: Any,
        images: Mapping[str, Any] | None = None,
        objects: Any = None,
        decision: bool = False,
    ) -> int:
        """Show the policy one control tick and wait until its memory has it; returns how many it
        has.

        `decision` says that one is due now: what the policy itself has planned before (ACT does) is
        dropped.
        """
        future = self.observe_soon(
            proprioception=proprioception, images=images, objects=objects, decision=decision
        )
        return self._client.wait(future)

    def observe_soon(
        self,
        *,
        proprioception: Any,
        images: Mapping[str, Any] | None = None,
        objects: Any = None,
        decision: bool = False,
    ) -> Future[int]:
        """As `observe`, without waiting."""
        seen: dict[str, Any] = {"proprioception": np.asarray(proprioception)}
        if images:
            seen["images"] = {name: np.asarray(image) for name, image in images.items()}
        if objects is not None:
            seen["objects"] = np.asarray(objects)
        # the next number is given and sent in one go, or two threads could overtake each other
        with self._lock:
            with self._counting:
                # After a refusal the server stays where it was, and so does the count of what it
                # has.
                tick = self._ticks + self._sent
                self._sent += 1
            try:
                request = {
                    "kind": "observe",
                    "tick": tick,
                    "observation": seen,
                    "decision": decision,
                }
                return self._ask(request, lambda reply: int(reply["ticks"]), 1)
            except BaseException:
                with self._counting:
                    self._sent -= 1
                raise

    def act(self, *, steps: int | None = None) -> np.ndarray:
        """The next chunk of actions (H, A), in the robot's units, from what was observed so far."""
        return self._client.wait(self.act_soon(steps=steps))

    def act_soon(self, *, steps: int | None = None) -> Future[np.ndarray]:
        """As `act`, without waiting: the robot may go on with what is left of its last chunk."""
        request = {"kind": "act"} if steps is None else {"kind": "act", "steps": steps}
        with self._lock:
            return self._ask(request, lambda reply: reply["actions"])

    def close(self) -> None:
        """Let the server forget this episode."""
        with self._lock:
            done = self._ask({"kind": "close"}, lambda reply: None)
        self._client.wait(done)

    def _ask(
        self,
        request: dict[str, Any],
        understand: Callable[[dict[str, Any]], Any],
        observed: int = 0,
    ) -> Future[Any]:
        def noted(reply: dict[str, Any]) -> None:
            with self._counting:
                self._sent -= observed
                if reply.get("ticks") is not None:
                    self._ticks = reply["ticks"]

        return self._client.ask({**request, "session": self.name}, understand, noted)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()  # otherwise the server notices; a second error would hide the first
