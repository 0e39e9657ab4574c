"""One client's connection: its sessions and its unanswered requests.

Every message gets exactly one reply. While `max_waiting` requests are unanswered, no more messages
are read: the client's network buffers fill up and it has to wait, so that no client can fill the
server's memory.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from typing import Any

from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode

from chameleon_client.wire import WireError, decode, encode
from chameleon_policy.serve.engine import Engine, error_reply
from chameleon_policy.serve.requests import Close, Open, Request, RequestError, number_of, parse
from chameleon_policy.serve.sessions import PendingRequest, Reply, Session
from chameleon_policy.serve.settings import ServerSettings

LOG = logging.getLogger("chameleon_policy.serve")


class Connection:
    """A connection that reads requests, submits them to the engine and writes replies.

    `all_sessions` holds the sessions of all connections.
    """

    def __init__(
        self,
        socket: ServerConnection,
        engine: Engine,
        settings: ServerSettings,
        max_bytes: int,
        all_sessions: set[Session],
    ) -> None:
        self._socket, self._engine = socket, engine
        self._settings, self._max_bytes = settings, max_bytes
        self._all_sessions = all_sessions
        self._sessions: dict[str, Session] = {}
        self._peer: str = socket.remote_address[0]
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
            await self._socket.close(CloseCode.INVALID_DATA, _truncate(str(error)))
        finally:
            self._drop_all()
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
                self._drop(self._sessions.pop(name))
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
        session = (
            self._open(request)
            if isinstance(request, Open)
            else self._sessions.get(request.session)
        )
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
        if len(self._all_sessions) >= self._settings.max_sessions:
            raise RequestError(
                "too-many-sessions",
                f"all {self._settings.max_sessions} sessions of this server are in use; close one, "
                "try again later, or start the server with more --sessions",
            )
        session = self._sessions[request.session] = Session(request.session, peer=self._peer)
        self._all_sessions.add(session)
        return session

    def _finish(self, session: Session, request: Request, reply: Reply) -> None:
        session.unanswered -= 1
        session.last_used = self._empty_since = time.monotonic()
        failed = reply["kind"] == "error"
        if isinstance(request, Close) or (isinstance(request, Open) and failed):
            self._all_sessions.discard(session)
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

    def _drop_all(self) -> None:
        for session in self._sessions.values():
            self._drop(session)
        self._sessions.clear()

    def _drop(self, session: Session) -> None:
        """Close a session whose client no longer waits for replies."""
        close = Close(request=0, session=session.name)
        self._engine.drop(
            session, PendingRequest(close, lambda reply: self._all_sessions.discard(session))
        )


def _truncate(reason: str) -> str:
    """Return a reason that fits into a close frame, which holds 123 bytes."""
    return reason.encode()[:120].decode(errors="ignore")
