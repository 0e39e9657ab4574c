"""One client's connection: its sessions and its unanswered requests.

Every message gets exactly one reply. While `max_waiting` requests are unanswered, no more messages
are read: the client's network buffers fill up and it has to wait, so that no client can fill the
server's memory.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from contextlib import suppress
from typing import Any

from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode

from chameleon_client.wire import WireError, decode, encode
from chameleon_policy.serve.answers import error_reply
from chameleon_policy.serve.audit import Audit
from chameleon_policy.serve.book import SessionBook
from chameleon_policy.serve.door import peer_of
from chameleon_policy.serve.engine import Engine
from chameleon_policy.serve.requests import (
    Close,
    Open,
    Request,
    RequestError,
    Resume,
    number_of,
    parse,
)
from chameleon_policy.serve.sessions import PendingRequest, Reply, Session
from chameleon_policy.serve.settings import ServerSettings

LOG = logging.getLogger("chameleon_policy.serve")
PARTINGS: dict[int | None, str] = {
    CloseCode.NORMAL_CLOSURE: "its client left",
    CloseCode.GOING_AWAY: "the server was stopped",
}
"""Reasons of sessions that end with their connection, by its close code."""


class Connection:
    """A connection that reads requests, submits them to the engine and writes replies.

    `book` holds the sessions of all connections.
    """

    def __init__(
        self,
        socket: ServerConnection,
        engine: Engine,
        settings: ServerSettings,
        max_bytes: int,
        book: SessionBook,
        audit: Audit,
    ) -> None:
        self._socket, self._engine = socket, engine
        self._settings, self._max_bytes = settings, max_bytes
        self._book, self._audit = book, audit
        self._sessions: dict[str, Session] = {}
        self.peer = peer_of(socket.remote_address)
        """Address of the client."""
        # one place is taken by the greeting, which is sent first
        self._room = asyncio.Semaphore(settings.max_waiting - 1)
        self._outgoing: asyncio.Queue[bytes] = asyncio.Queue()
        self._last_request = -1
        self._empty_since = time.monotonic()

    async def run(self, greeting: dict[str, Any]) -> None:
        """Serve this client until it disconnects or is disconnected."""
        self._outgoing.put_nowait(encode(greeting))
        reader, writer = asyncio.create_task(self._read()), asyncio.create_task(self._write())
        # a reader that waits for room does not notice that the client is gone
        gone = asyncio.create_task(self._socket.wait_closed())
        try:
            await asyncio.wait((reader, writer, gone), return_when=asyncio.FIRST_COMPLETED)
            for task in (reader, writer):
                if task.done():
                    task.result()
        except ConnectionClosed:
            pass  # this is how connections end
        except WireError as error:
            self._drop_all("sent bytes that are no message")
            await self._socket.close(CloseCode.INVALID_DATA, _truncate(str(error)))
        finally:
            self._leave()
            for task in (reader, writer, gone):
                task.cancel()
            await asyncio.gather(reader, writer, gone, return_exceptions=True)

    async def close(self, code: CloseCode, reason: str) -> None:
        """Send the replies that are ready, then close the connection."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._settings.close_seconds):
                await self._outgoing.join()
        await self._socket.close(code, reason)

    def expire(self, now: float) -> bool:
        """Close idle sessions; return whether the connection has been without one for too long."""
        limit = self._settings.idle_seconds
        for name, session in list(self._sessions.items()):
            if not session.unanswered and now - session.last_used > limit:
                self._book.drop(self._sessions.pop(name), f"idle for {limit:g} s")
        if self._sessions:
            self._empty_since = now
        return now - self._empty_since > limit

    async def _read(self) -> None:
        while True:
            await self._room.acquire()
            data = await self._socket.recv()
            if isinstance(data, str):
                raise WireError("expected binary messages, got text")
            message = decode(data, self._max_bytes)
            number = number_of(message)
            try:
                if number is not None:
                    self._check_number(number)
                self._take(parse(message, self._settings.max_sampling_steps))
            except RequestError as error:
                self._reply(number, error_reply(error.code, error.message))

    def _check_number(self, number: int) -> None:
        if number <= self._last_request:
            raise RequestError(
                "replayed",
                f"request: expected a number above {self._last_request}, got {number}; "
                "numbers must rise",
            )
        self._last_request = number

    def _take(self, request: Request) -> None:
        """Submit a request to the engine, or raise a RequestError."""
        session: Session | None
        if isinstance(request, Open):
            session = self._open(request)
        elif isinstance(request, Resume):
            session = self._resume(request)
        else:
            session = self._sessions.get(request.session)
        if session is None:
            raise RequestError(
                "unknown-session",
                f"session: this connection has no {request.session!r}; open it first. A session "
                f"is closed after {self._settings.idle_seconds:g} s without a request",
            )
        if isinstance(request, Close):
            del self._sessions[request.session]
        session.unanswered += 1
        session.last_used = time.monotonic()
        self._engine.submit(
            session, PendingRequest(request, lambda reply: self._finish(session, request, reply))
        )

    def _open(self, request: Open) -> Session:
        self._check_room(request)
        for session in self._book.room_for(self.peer):
            self._book.drop(session, "its client was away, and its place was needed")
        session = Session(request.session, peer=self.peer)
        if request.keep:
            session.secret = secrets.token_urlsafe(32)
        self._enter(session)
        self._audit.note("open", self.peer, session.name)
        return session

    def _resume(self, request: Resume) -> Session:
        session, owner = self._book.find(request.secret)
        self._check_room(request)
        if owner is not None:  # the server has not noticed yet that this connection is lost
            owner.give_away(session)
        session.name, session.peer = request.session, self.peer
        self._enter(session)
        self._audit.note("resume", self.peer, session.name)
        return session

    def _check_room(self, request: Open | Resume) -> None:
        if request.session in self._sessions:
            raise RequestError(
                "session-exists",
                f"session: {request.session!r} is already open; close it, or choose another name",
            )
        most = self._settings.max_sessions_per_connection
        if len(self._sessions) >= most:
            raise RequestError(
                "too-many-sessions",
                f"a connection may have {most} sessions, and this one does; close one first",
            )

    def _enter(self, session: Session) -> None:
        self._sessions[session.name] = session
        self._book.enter(session, self)

    def give_away(self, session: Session) -> None:
        """Forget a session that another connection of its client continues."""
        del self._sessions[session.name]

    def _finish(self, session: Session, request: Request, reply: Reply) -> None:
        session.unanswered -= 1
        session.last_used = self._empty_since = time.monotonic()
        failed = reply["kind"] == "error"
        if isinstance(request, Close) or (isinstance(request, Open | Resume) and failed):
            self._book.remove(session)
            self._audit.note("close", self.peer, session.name, reply.get("code", "by its client"))
            if self._sessions.get(request.session) is session:
                del self._sessions[request.session]
        self._reply(request.request, reply)

    def _reply(self, number: int | None, reply: Reply) -> None:
        self._outgoing.put_nowait(encode({**reply, "request": number}))

    async def _write(self) -> None:
        while True:
            data = await self._outgoing.get()
            try:
                async with asyncio.timeout(self._settings.send_seconds):
                    await self._socket.send(data)
            except TimeoutError:
                LOG.warning(
                    "a client did not take a reply within %g s and was dropped",
                    self._settings.send_seconds,
                )
                self._socket.transport.abort()
                return
            except ConnectionClosed:
                return  # the reader notices it, too
            finally:
                self._outgoing.task_done()
            self._room.release()

    def _leave(self) -> None:
        """Close the sessions of a client that said goodbye; keep those that it may continue."""
        reason = PARTINGS.get(self._socket.close_code)
        for session in list(self._sessions.values()):
            if session.secret is not None and reason is None:
                self._book.keep(session)
                del self._sessions[session.name]
        self._drop_all(reason or "the connection was lost")

    def _drop_all(self, reason: str) -> None:
        for session in self._sessions.values():
            self._book.drop(session, reason)
        self._sessions.clear()


def _truncate(reason: str) -> str:
    """Return a reason that fits into a close frame, which holds 123 bytes."""
    return reason.encode()[:120].decode(errors="ignore")
