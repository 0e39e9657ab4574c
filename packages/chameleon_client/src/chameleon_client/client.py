"""A connection to a policy server, for the loop that controls a robot.

Two threads in the background send and receive: a call that does not wait for its answer returns at
once, also while the network is stuck, so that a control loop can stop its robot. Answers come to
whoever waits for them, by the number of the request.
"""

from __future__ import annotations

import itertools
import queue
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotInTime
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI
from websockets.sync.client import connect

from chameleon_client.errors import ConnectionLost, ServerError, Timeout
from chameleon_client.metadata import Metadata
from chameleon_client.session import Session
from chameleon_client.wire import WireError, decode, encode

T = TypeVar("T")
MAX_REPLY = 2**24
"""Bytes: metadata and chunks are far smaller."""
MAX_UNSENT = 256
"""Messages that may wait to be sent: whoever goes on while the network is stuck must not fill the
memory.
"""
Reply = dict[str, Any]


@dataclass(eq=False, slots=True)
class _Asked:
    """A request that has no reply yet."""

    future: Future[Any]
    understand: Callable[[Reply], Any]
    """The reply, if it is no error, to what the caller wants."""
    noted: Callable[[Reply], object]
    """Called with every reply first, errors too, also if the caller has given up."""


class Client:
    """A connection to the server at `url`, such as ws://127.0.0.1:8765; wss:// for one behind TLS.

    `token` is what the server was started with, if it was; `timeout` is how many seconds a call
    waits for its answer.
    """

    def __init__(self, url: str, *, token: str | None = None, timeout: float = 10.0) -> None:
        self.url, self.timeout = url, timeout
        self._waiting: dict[int, _Asked] = {}
        self._lock, self._sending = threading.Lock(), threading.Lock()
        self._lost: str | None = None
        self._requests, self._names = itertools.count(), itertools.count()
        self._outgoing: queue.Queue[bytes | None] = queue.Queue(MAX_UNSENT)
        self._stack = ExitStack()
        try:
            self._socket = self._stack.enter_context(
                connect(
                    url,
                    additional_headers={}
                    if token is None
                    else {"Authorization": f"Bearer {token}"},
                    # pictures are random enough to make it slow, and robots are close by
                    compression=None,
                    proxy=None,
                    open_timeout=timeout,
                    close_timeout=min(timeout, 2.0),
                    max_size=MAX_REPLY,
                )
            )
        except InvalidURI as error:
            raise ConnectionLost(
                f"{url}: expected an address such as ws://127.0.0.1:8765"
            ) from error
        except InvalidStatus as error:
            raise ConnectionLost(
                f"{url}: {error.response.body.decode(errors='replace').strip() or error}"
            ) from error
        except (OSError, InvalidHandshake) as error:
            raise ConnectionLost(
                f"{url}: {error}; is the server running (`chameleon serve RUN`)?"
            ) from error
        try:
            self.metadata = Metadata.of(self._decoded(self._socket.recv(timeout)))
        except BaseException as error:
            self._stack.close()
            if isinstance(error, (TimeoutError, ConnectionClosed, WireError)):
                raise ConnectionLost(
                    f"{url}: {error}; is this a Chameleon policy server?"
                ) from error
            raise
        self._threads = [
            threading.Thread(target=work, name=f"chameleon-client-{work.__name__}", daemon=True)
            for work in (self._receive, self._send)
        ]
        for thread in self._threads:
            thread.start()

    def open(self, *, seed: int | None = None, instruction: str | None = None) -> Session:
        """A new episode with a memory of its own. The seed decides the noise of its chunks; None:
        the server draws one.
        """
        name = f"episode-{next(self._names)}"
        request: dict[str, Any] = {"kind": "open", "session": name}
        if seed is not None:
            request["seed"] = seed
        if instruction is not None:
            request["instruction"] = instruction
        return Session(self, name, self.wait(self.ask(request, lambda reply: reply["seed"])))

    def ask(
        self,
        request: dict[str, Any],
        understand: Callable[[Reply], Any] = dict,
        noted: Callable[[Reply], object] = lambda reply: None,
    ) -> Future[Any]:
        """Send a request and return at once; what `understand` makes of the reply arrives in the
        future.

        `noted` gets every reply, also an error.
        """
        future: Future[Any] = Future()
        # requests arrive in the order of their numbers, whichever threads they come from
        with self._sending:
            number = next(self._requests)
            data = encode({**request, "request": number})
            with self._lock:
                if self._lost is not None:
                    raise ConnectionLost(self._lost)
                self._waiting[number] = _Asked(future, understand, noted)
            try:
                self._outgoing.put_nowait(data)
            except queue.Full:
                with self._lock:
                    self._waiting.pop(number, None)
                raise Timeout(
                    f"{self.url}: {MAX_UNSENT} messages wait to be sent; the network is stuck"
                ) from None
        return future

    def wait(self, future: Future[T]) -> T:
        """The answer, or a Timeout."""
        try:
            return future.result(self.timeout)
        except NotInTime:
            raise Timeout(
                f"{self.url}: no answer within {self.timeout:g} s; it may still come"
            ) from None

    def close(self) -> None:
        """End the connection; the server forgets every session that is still open."""
        receiver, sender = self._threads
        with suppress(queue.Full):
            self._outgoing.put_nowait(None)
        sender.join(min(self.timeout, 2.0))
        if sender.is_alive():  # in the middle of a message that nobody takes
            with suppress(OSError):
                self._socket.socket.shutdown(socket.SHUT_RDWR)
        self._stack.close()
        receiver.join()

    def _send(self) -> None:
        try:
            while (data := self._outgoing.get()) is not None:
                self._socket.send(data)
        except (ConnectionClosed, OSError) as error:
            self._fail(error)

    def _receive(self) -> None:
        try:
            while True:
                self._answer(self._decoded(self._socket.recv()))
        except (ConnectionClosed, WireError) as error:
            self._fail(error)
        except BaseException as error:  # whoever waits must hear of it, whatever it was
            self._fail(error)
            raise
        finally:
            with suppress(queue.Full):
                self._outgoing.put_nowait(None)
            self._socket.close()

    def _answer(self, reply: Reply) -> None:
        with self._lock:
            asked = self._waiting.pop(reply.get("request", -1), None)
        if asked is None:
            return  # to a request that nobody made
        result: Any = None
        failure: Exception | None = None
        try:
            asked.noted(reply)
            if reply["kind"] == "error":
                failure = ServerError(str(reply["code"]), str(reply["message"]))
            else:
                result = asked.understand(reply)
        except (KeyError, TypeError, ValueError) as error:
            failure = WireError(f"the server's reply makes no sense: {error!r}")
        if asked.future.set_running_or_notify_cancel():
            asked.future.set_result(result) if failure is None else asked.future.set_exception(
                failure
            )

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            if self._lost is None:
                self._lost = (
                    f"{self.url}: the connection is gone ({error}), and every memory opened on it"
                )
            lost, self._waiting = self._waiting, {}
        for asked in lost.values():
            if asked.future.set_running_or_notify_cancel():
                asked.future.set_exception(ConnectionLost(self._lost))

    @staticmethod
    def _decoded(data: str | bytes) -> dict[str, Any]:
        if isinstance(data, str):
            raise WireError("expected bytes, got text; is this a Chameleon policy server?")
        return decode(data, MAX_REPLY)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
