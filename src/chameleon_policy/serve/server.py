"""The server: one event loop for the network, one thread that computes."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from websockets.asyncio.server import Server as Listener
from websockets.asyncio.server import ServerConnection
from websockets.asyncio.server import serve as listen
from websockets.frames import CloseCode

from chameleon_client.wire import PROTOCOL
from chameleon_policy import __version__
from chameleon_policy.device import Device, find_device
from chameleon_policy.policy import VisuomotorPolicy
from chameleon_policy.serve.audit import Audit
from chameleon_policy.serve.book import SessionBook
from chameleon_policy.serve.connection import Connection
from chameleon_policy.serve.door import HALF_OPEN, Guests, files_left, open_doors, peer_of
from chameleon_policy.serve.engine import Engine
from chameleon_policy.serve.health import handshake_filter
from chameleon_policy.serve.instructions import Embed, KeptInstructions
from chameleon_policy.serve.sessions import PendingRequest, Reply
from chameleon_policy.serve.settings import ServerSettings
from chameleon_policy.train.checkpoint import load_trained

LOG = logging.getLogger("chameleon_policy.serve")
HANDSHAKE_LOG = logging.getLogger("chameleon_policy.serve.handshakes")
"""For handshakes that fail; silent by default, since anybody can cause any number of them.

Refused connections are counted instead (see audit).
"""
HANDSHAKE_LOG.setLevel(logging.CRITICAL)
Announce = Callable[[str], object]


class Server:
    """A server of one policy for many clients."""

    def __init__(
        self,
        policy: VisuomotorPolicy,
        settings: ServerSettings,
        *,
        name: str,
        embed: Embed | None = None,
    ) -> None:
        if policy.config.sampling_steps > settings.max_sampling_steps:
            raise ValueError(
                f"--max-steps: {name} samples a chunk in {policy.config.sampling_steps} steps "
                "unless a client asks for fewer; expected at least as many, got "
                f"{settings.max_sampling_steps}"
            )
        self.policy, self.settings, self.name = policy, settings, name
        self.engine = Engine(policy, settings.max_sessions, embed)
        self._max_bytes = settings.message_bytes(policy.features)
        self._audit = Audit(settings.audit)
        self._book = SessionBook(settings, self.engine, self._audit)
        self._connections: set[Connection] = set()
        self._began = time.monotonic()
        self._stop: asyncio.Event | None = None
        self._closing = False

    async def run(self, announce: Announce = lambda url: None) -> None:
        """Serve until `stop`; `announce` gets the URL once clients can connect."""
        loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        listeners = await self._listen()
        self.engine.start(
            lambda replies: loop.call_soon_threadsafe(_deliver, replies),
            lambda: loop.call_soon_threadsafe(self._stop.set),  # type: ignore[union-attr]
        )
        housekeeping = asyncio.create_task(self._expire())
        # this task ends early only if it fails
        housekeeping.add_done_callback(lambda task: self.stop())
        address = listeners[0].sockets[0].getsockname()
        announce(_url(address, encrypted=self.settings.tls_cert is not None))
        try:
            await self._stop.wait()
        finally:
            housekeeping.cancel()
            self._closing = True
            for listener in listeners:
                listener.close(close_connections=False)  # accept no more clients
            await asyncio.to_thread(self.engine.stop)
            await asyncio.gather(
                *(
                    connection.close(CloseCode.GOING_AWAY, "the server was stopped")
                    for connection in self._connections
                )
            )
            for listener in listeners:
                await listener.wait_closed()
            self._audit.close()
        if not housekeeping.cancelled():
            housekeeping.result()
        if self.engine.failure is not None:
            raise RuntimeError("the computing thread failed") from self.engine.failure

    async def _listen(self) -> list[Listener]:
        """Listen on all addresses of the host."""
        settings, tls = self.settings, self.settings.tls()
        guests = Guests(files_left(), settings.connections_per_peer + HALF_OPEN, self._audit.refuse)
        try:
            doors = open_doors(settings.host, settings.port, guests)
        except OSError as error:
            where, why = f"{settings.host}, port {settings.port}", error.strerror or error
            raise OSError(
                f"cannot listen on {where}: {why}; choose another --port or --host"
            ) from error
        return [
            await listen(
                self._serve_client,
                sock=door,
                ssl=tls,
                process_request=handshake_filter(
                    settings.token, self.health, self._why_full, self._audit.refuse
                ),
                # browsers send an origin: a web page must not control a robot
                origins=[None],
                compression=None,
                max_size=self._max_bytes,
                max_queue=2,
                open_timeout=settings.handshake_seconds,
                ping_interval=settings.ping_seconds,
                ping_timeout=settings.ping_seconds,
                close_timeout=settings.close_seconds,
                logger=HANDSHAKE_LOG,
                ssl_handshake_timeout=None if tls is None else settings.handshake_seconds,
            )
            for door in doors
        ]

    def stop(self) -> None:
        """End `run`; to be called in the thread of its event loop."""
        if self._stop is not None:
            self._stop.set()

    def health(self) -> dict[str, Any]:
        """Return what every client may know without a token."""
        return {
            "status": "stopping" if self._closing else "ok",
            "policy": self.name,
            "sessions": len(self._book),
            "connections": len(self._connections),
            **asdict(self.engine.counts),
            "uptime_s": round(time.monotonic() - self._began, 1),
        }

    def metadata(self) -> dict[str, Any]:
        """Return the first message to a client."""
        features, settings = self.policy.features, self.settings
        return {
            "kind": "metadata",
            "protocol": PROTOCOL,
            "policy": self.name,
            "method": self.policy.method,
            "version": __version__,
            "views": {view.name: [view.height, view.width] for view in features.views},
            "proprioception": features.proprioception,
            "action": features.action,
            "horizon": features.horizon,
            "executed": self.policy.executed,
            "sampling_steps": self.policy.config.sampling_steps,
            "objects": None
            if features.objects is None
            else [features.objects.count, features.objects.size],
            "language": features.language is not None,
            "limits": {
                "message_bytes": self._max_bytes,
                "sessions": settings.max_sessions,
                "waiting": settings.max_waiting,
                "idle_seconds": settings.idle_seconds,
                "sampling_steps": settings.max_sampling_steps,
            },
        }

    def _why_full(self, peer: str) -> str | None:
        """Return why no further client of this address can connect, or None."""
        if self._closing:
            return "the server is stopping"
        if len(self._connections) >= self.settings.max_connections:
            most = self.settings.max_connections
            return f"all {most} connections of this server are in use; try again later"
        most = self.settings.connections_per_peer
        if sum(connection.peer == peer for connection in self._connections) >= most:
            return f"your address has {most} connections, the most that one may have; close one"
        return None

    async def _serve_client(self, socket: ServerConnection) -> None:
        if (
            full := self._why_full(peer_of(socket.remote_address))
        ) is not None:  # filled up during the handshake
            await socket.close(CloseCode.TRY_AGAIN_LATER, full)
            return
        connection = Connection(
            socket, self.engine, self.settings, self._max_bytes, self._book, self._audit
        )
        self._connections.add(connection)
        try:
            await connection.run(self.metadata())
        except Exception:
            LOG.exception("a connection failed")
            await socket.close(CloseCode.INTERNAL_ERROR, "the server failed")
        finally:
            self._connections.discard(connection)

    async def _expire(self) -> None:
        """Close idle sessions and connections, and those that are kept for too long."""
        while True:
            await asyncio.sleep(min(1.0, self.settings.idle_seconds / 4))
            now = time.monotonic()
            self._book.expire(now)
            self._audit.report()
            unused = [connection for connection in self._connections if connection.expire(now)]
            reason = f"no session for {self.settings.idle_seconds:g} s"
            await asyncio.gather(
                *(connection.close(CloseCode.POLICY_VIOLATION, reason) for connection in unused)
            )


def serve(
    run: Path | str,
    settings: ServerSettings,
    *,
    device: Device = "auto",
    announce: Announce = print,
) -> None:
    """Serve the policy of a run, a saved policy or a shipped one until SIGINT or SIGTERM."""
    where = find_device(device)
    policy = load_trained(run, where)
    language = policy.features.language
    embed = None if language is None else KeptInstructions.of(language, where)
    server = Server(policy, settings, name=Path(run).name, embed=embed)
    size = policy.initial_state(1).nbytes / 2**20

    def started(url: str) -> None:
        announce(
            f"Serving {server.name} ({policy.method}) on {where} at {url}, "
            f"{'with' if settings.token else 'without'} a token"
            f"{', encrypted' if settings.tls_cert else ''}; "
            f"up to {settings.max_sessions} sessions of {size:.1f} MiB. Stop with Ctrl-C."
        )

    async def main() -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            with suppress(NotImplementedError):  # Windows: Ctrl-C raises KeyboardInterrupt instead
                loop.add_signal_handler(number, server.stop)
        await server.run(started)

    asyncio.run(main())
    counts = server.engine.counts
    announce(
        f"Stopped after {server.health()['uptime_s']:g} s: "
        f"{counts.ticks} ticks and {counts.chunks} chunks were served."
    )


@contextmanager
def running_server(
    policy: VisuomotorPolicy,
    settings: ServerSettings,
    *,
    name: str = "policy",
    embed: Embed | None = None,
) -> Iterator[str]:
    """Run a server in a thread of this process for as long as the block lasts; yield its URL."""
    server = Server(policy, settings, name=name, embed=embed)
    ready, url, failure = threading.Event(), [""], []
    loop = asyncio.new_event_loop()

    def announce(where: str) -> None:
        url[0] = where
        ready.set()

    def work() -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: loop) as runner:
                runner.run(server.run(announce))
        except BaseException as error:  # raised again below, in the thread of the caller
            failure.append(error)
        finally:
            ready.set()

    thread = threading.Thread(target=work, name="chameleon-server", daemon=True)
    thread.start()
    ready.wait()
    try:
        if not failure:
            yield url[0]
    finally:
        if thread.is_alive():
            with suppress(RuntimeError):  # it ended this very moment
                loop.call_soon_threadsafe(server.stop)
        thread.join()
    if failure:
        raise failure[0]


def _deliver(replies: list[tuple[PendingRequest, Reply]]) -> None:
    for pending, reply in replies:
        pending.done(reply)


def _url(address: tuple[Any, ...], *, encrypted: bool) -> str:
    host = f"[{address[0]}]" if ":" in address[0] else address[0]
    return f"{'wss' if encrypted else 'ws'}://{host}:{address[1]}"
