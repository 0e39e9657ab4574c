"""The connection of a robot to its server, which is made again when it is lost."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, closing

from chameleon_client import Client, ConnectionLost, ServerError, Session

PAUSE = 0.5
"""Seconds between two attempts to connect."""


class Link:
    """A client and the session of the present episode; after a lost connection, the next ones."""

    def __init__(
        self, client: Client, seconds: float, interrupted: Callable[[], bool] = lambda: False
    ) -> None:
        """Try to connect again for so many `seconds`, or until `interrupted` returns True."""
        self.client, self.seconds = client, seconds
        self.connected = True
        self.session: Session | None = None
        self._interrupted = interrupted
        self._connections = ExitStack()

    def open(self, *, seed: int, instruction: str | None) -> Session:
        """Begin an episode."""
        try:
            self.session = self._open(seed, instruction)
        except ConnectionLost:
            if not self._connect_again():
                raise
            self.session = self._open(seed, instruction)
        return self.session

    def _open(self, seed: int, instruction: str | None) -> Session:
        return self.client.open(seed=seed, instruction=instruction, keep=self.seconds > 0)

    def resume(self) -> Session | None:
        """Connect again and continue the episode; None if that cannot be done."""
        assert self.session is not None
        while self._connect_again():
            try:
                self.session = self.client.resume(self.session)
            except ConnectionLost:
                continue
            except ServerError:  # it was restarted, or its time to keep the session is over
                return None
            return self.session
        return None

    def end_episode(self) -> None:
        """Close the session, now, because the server closes sessions that are idle."""
        assert self.session is not None
        try:
            self.session.close()
        except ConnectionLost:
            # the server closes it by itself, and the next episode has another connection
            if not self.seconds:
                raise

    def close(self) -> None:
        """Close the connections that were made here."""
        self._connections.close()

    def _connect_again(self) -> bool:
        """Replace the lost connection; return whether there is one within the time."""
        self.connected = False
        end = time.monotonic() + self.seconds
        while time.monotonic() < end and not self._interrupted():
            try:
                self.client = self._connections.enter_context(closing(self.client.again()))
            except ConnectionLost:
                time.sleep(PAUSE)
            else:
                self.connected = True
                break
        return self.connected
