"""One client's connection: its sessions, and what may wait in it.

Every message gets exactly one reply, so that what is unanswered can be counted: when `max_waiting`
requests are, nothing more is read, the client's network buffers fill up, and it has to wait. Nobody
can fill the server's memory.
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
from chameleon_policy.serve.requests import Close, Open, Refusal, Request, number_of, parse
from chameleon_policy.serve.sessions import Job, Reply, Session
from chameleon_policy.serve.settings import Settings

LOG = logging.getLogger("chameleon_policy.serve")


class Connection:
    """Reads requests, hands them to the engine, writes replies. `everyone` holds the sessions of
    all connections.
    """

    def __init__(
        self,
        socket: ServerConnection,
        engine: Engine,
        settings: Settings,
        max_bytes: int,
        everyone: set[Session],
    ) -> None:
        self._socket, self._engine, self._settings, self._max_bytes = (
            socket,
            engine,
            settings,
            max_bytes,
        )
        self._everyone = everyone
        self._sessions: dict[str, Session] = {}
        # the greeting is the first to be sent
        self._room = asyncio.Semaphore(settings.max_waiting - 1)
        self._outgoing: asyncio.Queue[bytes] = asyncio.Queue()
        self._last_request = -1
        self._empty_since = time.monotonic()

    async def run(self, greeting: dict[str, Any]) -> None:
        """Until the client goes, or has to."""
        self._outgoing.put_nowait(encode(greeting))
        reader, writer = asyncio.create_task(self._read()), asyncio.create_task(self._write())
        # A reader that waits for room does not hear that the client is gone.
        gone = asyncio.create_task(self._socket.wait_closed())
        try:
            await asyncio.wait((reader, writer, gone), return_when=asyncio.FIRST_COMPLETED)
            for task in (reader, writer):
                if task.done():
                    task.result()
        except ConnectionClosed:
            pass  # as all connections end, one way or another
        except WireError as error:
            await self._socket.close(CloseCode.INVALID_DATA, _fitting(str(error)))
        finally:
            self._forget_all()
            for task in (reader, writer, gone):
                task.cancel()
            await asyncio.gather(reader, writer, gone, return_exceptions=True)

    async def close(self, code: CloseCode, reason: str) -> None:
        """Send what is ready, and tell the client to go."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._settings.close_seconds):
                await self._outgoing.join()
        await self._socket.close(code, reason)

    def expire(self, now: float) -> bool:
        """Close sessions that nobody uses; True if the connection has none and should go as
        well.
        """
        limit = self._settings.idle_seconds
        for name, session in list(self._sessions.items()):
            if not session.unanswered and now - session.last_used > limit:
                self._forget(self._sessions.pop(name))
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
            except Refusal as refusal:
                self._reply(number, error_reply(refusal.code, refusal.message))

    def _check_number(self, number: int) -> None:
        if number <= self._last_request:
            said = f"request: expected a number above {self._last_request}, got {number}; that one was dealt with"
            raise Refusal("replayed", said)
        self._last_request = number

    def _take(self, request: Request) -> None:
        """Hand a request to the engine, or raise a Refusal."""
        session = (
            self._opened(request)
            if isinstance(request, Open)
            else self._sessions.get(request.session)
        )
        if session is None:
            raise Refusal(
                "unknown-session",
                f"session: this connection has no {request.session!r}; open it first. A session is closed after "
                f"{self._settings.idle_seconds:g} s without a request",
            )
        if isinstance(request, Close):
            del self._sessions[request.session]
        session.unanswered += 1
        session.last_used = time.monotonic()
        self._engine.submit(
            session, Job(request, lambda reply: self._answered(session, request, reply))
        )

    def _opened(self, request: Open) -> Session:
        if request.session in self._sessions:
            raise Refusal(
                "session-exists",
                f"session: {request.session!r} is open already; close it, or take another name",
            )
        most = self._settings.max_sessions_per_connection
        if len(self._sessions) >= most:
            raise Refusal(
                "too-many-sessions",
                f"a connection may have {most} sessions, and this one has; close one first",
            )
        if len(self._everyone) >= self._settings.max_sessions:
            raise Refusal(
                "too-many-sessions",
                f"all {self._settings.max_sessions} sessions of this server are in use; close one, try again later, or "
                "start the server with more --sessions",
            )
        session = self._sessions[request.session] = Session(request.session)
        self._everyone.add(session)
        return session

    def _answered(self, session: Session, request: Request, reply: Reply) -> None:
        session.unanswered -= 1
        session.last_used = self._empty_since = time.monotonic()
        failed = reply["kind"] == "error"
        if isinstance(request, Close) or (isinstance(request, Open) and failed):
            self._everyone.discard(session)
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
                return  # the reader has heard of it too
            finally:
                self._outgoing.task_done()
            self._room.release()

    def _forget_all(self) -> None:
        for session in self._sessions.values():
            self._forget(session)
        self._sessions.clear()

    def _forget(self, session: Session) -> None:
        """Close a session for which nobody waits."""
        close = Close(request=0, session=session.name)
        self._engine.drop(session, Job(close, lambda reply: self._everyone.discard(session)))


def _fitting(reason: str) -> str:
    """A close frame holds 123 bytes of reason."""
    return reason.encode()[:120].decode(errors="ignore")
