"""All sessions of a server: who has them, and which of them wait for a client that was cut off."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from typing import TYPE_CHECKING

from chameleon_policy.serve.audit import Audit
from chameleon_policy.serve.engine import Engine
from chameleon_policy.serve.requests import Close, RequestError
from chameleon_policy.serve.sessions import PendingRequest, Session
from chameleon_policy.serve.settings import ServerSettings

if TYPE_CHECKING:
    from chameleon_policy.serve.connection import Connection


class SessionBook:
    """The sessions of all connections, and those that are kept. For the network's thread."""

    def __init__(self, settings: ServerSettings, engine: Engine, audit: Audit) -> None:
        self._settings, self._engine, self._audit = settings, engine, audit
        self._owners: dict[Session, Connection | None] = {}
        """None: kept for its client."""
        self._kept_since: dict[Session, float] = {}
        """In order of time."""
        self._by_secret: dict[bytes, Session] = {}

    def __len__(self) -> int:
        return len(self._owners)

    def room_for(self, peer: str) -> list[Session]:
        """Return the kept sessions to close before a client opens one, or raise a RequestError.

        Whoever is there comes before those who were cut off.
        """
        settings, kept = self._settings, list(self._kept_since)
        held = Counter(session.peer for session in self._owners)
        if held[peer] >= settings.sessions_per_peer:
            mine = [session for session in kept if session.peer == peer]
            if not mine:
                raise RequestError(
                    "too-many-sessions",
                    f"your address has {settings.sessions_per_peer} sessions, the most that "
                    "one may have; close one, or start the server with more --sessions-per-peer",
                )
            return mine[:1]
        if len(self) < settings.max_sessions:
            return []
        if not kept:
            raise RequestError(
                "too-many-sessions",
                f"all {settings.max_sessions} sessions of this server are in use; close one, try "
                "again later, or start the server with more --sessions",
            )
        return kept[:1]

    def enter(self, session: Session, owner: Connection) -> None:
        """Note the owner of a session."""
        self._owners[session] = owner
        self._kept_since.pop(session, None)
        if session.secret is not None:
            self._by_secret[_digest(session.secret)] = session

    def remove(self, session: Session) -> None:
        """Forget a session."""
        self._owners.pop(session, None)
        self._kept_since.pop(session, None)
        if session.secret is not None:
            self._by_secret.pop(_digest(session.secret), None)

    def drop(self, session: Session, reason: str) -> None:
        """Close a session whose client no longer waits for replies."""
        self._audit.note("close", session.peer, session.name, reason)
        # the engine closes it before it opens another one, which may then have its slot
        close = Close(request=0, session=session.name)
        self._engine.drop(session, PendingRequest(close, lambda reply: None))
        self.remove(session)

    def keep(self, session: Session) -> None:
        """Keep a session for its client, whose connection is lost."""
        self._audit.note("keep", session.peer, session.name, "the connection was lost")
        self._owners[session] = None
        self._kept_since[session] = time.monotonic()

    def find(self, secret: str) -> tuple[Session, Connection | None]:
        """Return the session with this secret and its owner, or raise a RequestError."""
        # found by its digest, so that the time it takes says nothing about the secret
        session = self._by_secret.get(_digest(secret))
        if session is None:
            raise RequestError(
                "unknown-session",
                "resume: there is no session with this secret; it was closed, or its client was "
                f"away for more than {self._settings.grace_seconds:g} s. Open a new one",
            )
        return session, self._owners[session]

    def expire(self, now: float) -> None:
        """Close the sessions whose client has not come back in time."""
        grace = self._settings.grace_seconds
        for session, since in list(self._kept_since.items()):
            if now - since > grace:
                self.drop(session, f"its client did not come back within {grace:g} s")


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()
