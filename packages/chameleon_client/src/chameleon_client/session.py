"""One episode on a server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Self

import numpy as np

if TYPE_CHECKING:
    from chameleon_client.client import Client


class Session:
    """An episode with a memory on the server; `Client.open` makes it.

    Several threads may use it; observations are numbered in the order of the calls.
    """

    def __init__(
        self, client: Client, name: str, seed: int, secret: str | None = None, ticks: int = 0
    ) -> None:
        self._client, self.name = client, name
        self.seed = seed
        """Determines the noise of every chunk; drawn by the server if none was given."""
        self.secret = secret
        """Text with which `Client.resume` continues it on another connection, drawn by the server.

        Whoever has it can do the same.
        """
        self._lock = threading.Lock()
        self._counting = threading.Lock()
        self._ticks, self._sent = ticks, 0

    @property
    def ticks(self) -> int:
        """Number of observations in the memory, as of the server's last reply."""
        return self._ticks

    def observe(
        self,
        *,
        proprioception: Any,
        images: Mapping[str, Any] | None = None,
        objects: Any = None,
    ) -> int:
        """Send the observation of one control tick and wait until the memory has it.

        Returns the number of observations in the memory.
        """
        future = self.observe_soon(proprioception=proprioception, images=images, objects=objects)
        return self._client.wait(future)

    def observe_soon(
        self,
        *,
        proprioception: Any,
        images: Mapping[str, Any] | None = None,
        objects: Any = None,
    ) -> Future[int]:
        """Do the same as `observe`, but return a future at once."""
        observation: dict[str, Any] = {"proprioception": np.asarray(proprioception)}
        if images:
            observation["images"] = {name: np.asarray(image) for name, image in images.items()}
        if objects is not None:
            observation["objects"] = np.asarray(objects)
        # one lock for numbering and sending, or two threads could overtake each other
        with self._lock:
            with self._counting:
                # a refused observation does not count: the server's next tick stays the same
                tick = self._ticks + self._sent
                self._sent += 1
            try:
                message = {"kind": "observe", "tick": tick, "observation": observation}
                return self._request(message, lambda reply: int(reply["ticks"]), observed=1)
            except BaseException:
                with self._counting:
                    self._sent -= 1
                raise

    def act(self, *, steps: int | None = None) -> np.ndarray:
        """Return the next chunk of actions (H A) in the robot's units."""
        return self._client.wait(self.act_soon(steps=steps))

    def act_soon(self, *, steps: int | None = None) -> Future[np.ndarray]:
        """Do the same as `act`, but return a future at once."""
        message = {"kind": "act"} if steps is None else {"kind": "act", "steps": steps}
        with self._lock:
            return self._request(message, lambda reply: reply["actions"])

    def close(self) -> None:
        """Close the episode, so that the server frees its memory."""
        with self._lock:
            done = self._request({"kind": "close"}, lambda reply: None)
        self._client.wait(done)

    def _request(
        self,
        message: dict[str, Any],
        parse: Callable[[dict[str, Any]], Any],
        observed: int = 0,
    ) -> Future[Any]:
        def count(reply: dict[str, Any]) -> None:
            with self._counting:
                self._sent -= observed
                if reply.get("ticks") is not None:
                    self._ticks = reply["ticks"]

        return self._client.request({**message, "session": self.name}, parse, count)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            # after an error the server notices; a second error here would hide the first
            self.close()
