"""A connection to a policy server, for the loop that controls a robot.

Two background threads send and receive. A call that does not wait for its reply returns at once,
even while the network is stuck, so that a control loop can stop its robot. Replies are matched to
requests by the number of the request.
"""

from __future__ import annotations

import itertools
import queue
import socket
import ssl
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI
from websockets.sync.client import ClientConnection, connect

from chameleon_client.errors import ConnectionLost, ServerError, Timeout
from chameleon_client.metadata import Metadata
from chameleon_client.session import Session
from chameleon_client.wire import WireError, decode, encode

T = TypeVar("T")
MAX_REPLY = 2**24
"""Largest reply in bytes; metadata and chunks are far smaller."""
MAX_UNSENT = 256
"""Messages that may wait to be sent, so that a client cannot fill its memory while the network is
stuck.
"""
Reply = dict[str, Any]


@dataclass(eq=False, slots=True)
class _AwaitedReply:
    """A request that has no reply yet."""

    future: Future[Any]
    parse: Callable[[Reply], Any]
    """Turns a reply that is no error into the result of the future."""
    on_reply: Callable[[Reply], object]
    """Called first with every reply, also with an error, even if the caller has given up."""


class Client:
    """A connection to the server at `url`, such as ws://127.0.0.1:8765, or wss:// with TLS.

    `token` is the token of the server, if it has one; a call waits at most `timeout` seconds for
    its reply. `tls_ca` is a file (PEM) with the certificate of the authority that signed the
    server's, or that itself if it is self-signed; without it, those of this machine are trusted.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        timeout: float = 10.0,
        tls_ca: Path | str | None = None,
    ) -> None:
        self.url, self.timeout = url, timeout
        self._token, self._tls_ca = token, tls_ca
        self._waiting: dict[int, _AwaitedReply] = {}
        self._lock, self._sending = threading.Lock(), threading.Lock()
        self._lost: str | None = None
        self._requests, self._episodes = itertools.count(), itertools.count()
        self._outgoing: queue.Queue[bytes | None] = queue.Queue(MAX_UNSENT)
        self._stack = ExitStack()
        self._socket = _connect(self._stack, url, token, timeout, _tls(url, tls_ca))
        try:
            self.metadata = Metadata.of(self._decode(self._socket.recv(timeout)))
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

    def open(
        self, *, seed: int | None = None, instruction: str | None = None, keep: bool = False
    ) -> Session:
        """Begin an episode with a memory of its own.

        The seed determines the noise of its chunks; without one the server draws it. With `keep`
        the server keeps the memory for some time if the connection is lost, for `resume`.
        """
        name = self._new_name()
        message: dict[str, Any] = {"kind": "open", "session": name}
        if keep:
            message["keep"] = True
        if seed is not None:
            message["seed"] = seed
        if instruction is not None:
            message["instruction"] = instruction
        reply = self.wait(self.request(message))
        return Session(self, name, reply["seed"], reply.get("secret"))

    def resume(self, session: Session) -> Session:
        """Continue an episode of a connection that was lost; its `ticks` tell where to go on.

        It must have been opened with `keep`. What was sent and never confirmed may be missing.
        """
        if session.secret is None:
            raise ValueError(f"{session.name} cannot be resumed: open it with keep=True")
        name = self._new_name()
        message = {"kind": "resume", "session": name, "secret": session.secret}
        reply = self.wait(self.request(message))
        return Session(self, name, reply["seed"], session.secret, reply["ticks"])

    def again(self) -> Client:
        """Connect once more to the same server, after this connection was lost."""
        return Client(self.url, token=self._token, timeout=self.timeout, tls_ca=self._tls_ca)

    def _new_name(self) -> str:
        return f"episode-{next(self._episodes)}"

    def request(
        self,
        message: dict[str, Any],
        parse: Callable[[Reply], Any] = dict,
        on_reply: Callable[[Reply], object] = lambda reply: None,
    ) -> Future[Any]:
        """Send a request and return a future at once, whose result is `parse` of the reply.

        `on_reply` is called with every reply, also with an error.
        """
        future: Future[Any] = Future()
        # requests must arrive in the order of their numbers, whichever threads send them
        with self._sending:
            number = next(self._requests)
            data = encode({**message, "request": number})
            with self._lock:
                if self._lost is not None:
                    raise ConnectionLost(self._lost)
                self._waiting[number] = _AwaitedReply(future, parse, on_reply)
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
        """Return the result of a request; raise a Timeout if it does not come in time."""
        try:
            return future.result(self.timeout)
        except FutureTimeoutError:
            raise Timeout(
                f"{self.url}: no reply within {self.timeout:g} s; it may still come"
            ) from None

    def close(self) -> None:
        """End the connection; the server closes every session that is still open."""
        receiver, sender = self._threads
        with suppress(queue.Full):
            self._outgoing.put_nowait(None)
        sender.join(min(self.timeout, 2.0))
        if sender.is_alive():  # it is sending a message that the server does not receive
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
                self._resolve(self._decode(self._socket.recv()))
        except (ConnectionClosed, WireError) as error:
            self._fail(error)
        except BaseException as error:  # every waiting caller must get an error
            self._fail(error)
            raise
        finally:
            with suppress(queue.Full):
                self._outgoing.put_nowait(None)
            self._socket.close()

    def _resolve(self, reply: Reply) -> None:
        with self._lock:
            pending = self._waiting.pop(reply.get("request", -1), None)
        if pending is None:
            return  # nobody waits for this reply
        result: Any = None
        failure: Exception | None = None
        try:
            pending.on_reply(reply)
            if reply["kind"] == "error":
                failure = ServerError(str(reply["code"]), str(reply["message"]))
            else:
                result = pending.parse(reply)
        except (KeyError, TypeError, ValueError) as error:
            failure = WireError(f"the server's reply makes no sense: {error!r}")
        if not pending.future.set_running_or_notify_cancel():
            return
        if failure is None:
            pending.future.set_result(result)
        else:
            pending.future.set_exception(failure)

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            if self._lost is None:
                self._lost = (
                    f"{self.url}: the connection is gone ({error}), and every memory opened on it"
                )
            lost, self._waiting = self._waiting, {}
        for pending in lost.values():
            if pending.future.set_running_or_notify_cancel():
                pending.future.set_exception(ConnectionLost(self._lost))

    @staticmethod
    def _decode(data: str | bytes) -> dict[str, Any]:
        if isinstance(data, str):
            raise WireError("expected bytes, got text; is this a Chameleon policy server?")
        return decode(data, MAX_REPLY)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _tls(url: str, authority: Path | str | None) -> ssl.SSLContext | None:
    """Return how the server has to prove who it is, or None for an address without encryption."""
    if not url.startswith("wss://"):
        if authority is not None:
            raise ValueError(f"{url}: tls_ca is for addresses that begin with wss://")
        return None
    try:
        return ssl.create_default_context(cafile=authority)
    except OSError as error:  # also what OpenSSL finds wrong with it
        raise ValueError(
            f"tls_ca: {authority} is no file of certificates in PEM: {error}"
        ) from error


def _connect(
    stack: ExitStack, url: str, token: str | None, timeout: float, tls: ssl.SSLContext | None
) -> ClientConnection:
    """Return an open websocket that `stack` closes, or raise a ConnectionLost."""
    try:
        return stack.enter_context(
            connect(
                url,
                additional_headers={} if token is None else {"Authorization": f"Bearer {token}"},
                # compressing images takes longer than sending them over a local network
                compression=None,
                ssl=tls,
                proxy=None,
                open_timeout=timeout,
                close_timeout=min(timeout, 2.0),
                max_size=MAX_REPLY,
            )
        )
    except InvalidURI as error:
        raise ConnectionLost(f"{url}: expected an address such as ws://127.0.0.1:8765") from error
    except InvalidStatus as error:
        raise ConnectionLost(
            f"{url}: {error.response.body.decode(errors='replace').strip() or error}"
        ) from error
    except ssl.SSLCertVerificationError as error:
        raise ConnectionLost(
            f"{url}: the server's certificate is not trusted ({error.verify_message}); give the "
            "certificate of its authority, or its own if it is self-signed, as tls_ca (--tls-ca)"
        ) from error
    except (OSError, InvalidHandshake) as error:
        raise ConnectionLost(
            f"{url}: {error}; is the server running (`chameleon serve RUN`)?"
        ) from error
