"""Settings of a server."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field, fields
from pathlib import Path

from chameleon_policy.policy import Features
from chameleon_policy.serve.authentication import NEW_TOKEN, check_token, is_loopback

SLACK = 64 * 1024
"""Bytes of a message beyond its arrays: names, headers, an instruction."""


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """The address and the limits of a server. Seconds and counts are positive."""

    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 (every network interface) needs a token."""
    port: int = 8765
    """Port to listen on; 0: any free port."""
    token: str | None = field(default=None, repr=False)
    """Secret that clients must send; None is allowed for clients on this machine alone."""
    tls_cert: Path | None = None
    """Certificate (PEM) with which the server proves who it is; connections are encrypted then."""
    tls_key: Path | None = None
    """Key of the certificate (PEM)."""
    insecure: bool = False
    """Accept clients of other machines without encryption, so that the token can be read."""
    audit: Path | None = None
    """File for a line about every session and refusal."""
    max_sessions: int = 32
    """Memories of all clients together, allocated on demand."""
    max_sessions_per_connection: int = 16
    """Memories of one client, so that none can have them all."""
    max_sessions_per_peer: int | None = None
    """Memories of one address, so that no machine can have them all.

    None: three quarters of all, and at least 16.
    """
    max_connections: int = 64
    max_connections_per_peer: int | None = None
    """Connections of one address; None: three quarters of all, and at least 16."""
    max_waiting: int = 8
    """Unanswered requests of one connection, at which no more of it are read."""
    max_message_bytes: int | None = None
    """Bytes of one message; None: one observation with images in float32, and 64 KiB."""
    max_sampling_steps: int = 100
    """Sampling steps of one chunk, the cost of a single request."""
    idle_seconds: float = 120.0
    """Time without a request after which a session is closed; also a connection without any."""
    grace_seconds: float = 30.0
    """Time for which a session is kept for a client that was cut off, if it asked for that."""
    handshake_seconds: float = 10.0
    """Time for a handshake, after which a half-open connection is closed."""
    send_seconds: float = 10.0
    """Time to receive one reply, after which a client is disconnected."""
    ping_seconds: float = 20.0
    """Time between pings, and for the answer to one: a lost machine is noticed after both."""
    close_seconds: float = 2.0
    """Time for clients to close their connections when the server stops."""

    def __post_init__(self) -> None:
        for entry in fields(self):
            value = getattr(self, entry.name)
            if entry.type in ("int", "float", "int | None") and value is not None:
                number = int if "int" in str(entry.type) else (int, float)
                lowest = 0 if entry.name == "port" else 1 if number is int else 1e-3
                if (
                    not isinstance(value, number)
                    or isinstance(value, bool)
                    or not lowest <= value < 2**40
                ):
                    raise ValueError(
                        f"{entry.name}: expected a number of at least {lowest}, got {value!r}"
                    )
        if self.port > 65535:
            raise ValueError(f"port: expected 0 to 65535, got {self.port}")
        if self.token is not None:
            check_token(self.token)
        elif not is_loopback(self.host):
            raise ValueError(
                f"host: {self.host or 'every address'} can be reached from other machines, and "
                f"there is no token. Make one with: {NEW_TOKEN}  or serve this machine alone with: "
                "--host 127.0.0.1"
            )
        if not is_loopback(self.host) and not (self.tls_cert or self.insecure):
            raise ValueError(
                f"host: {self.host or 'every address'} can be reached from other machines, and the "
                "token would travel as it is. Give --tls-cert and --tls-key, or stay on --host "
                "127.0.0.1 behind an SSH tunnel, or accept it in a network that you trust with "
                "--insecure"
            )
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("TLS needs a certificate and its key: give --tls-cert and --tls-key")

    @property
    def sessions_per_peer(self) -> int:
        """Memories of one address."""
        return self.max_sessions_per_peer or _share(self.max_sessions)

    @property
    def connections_per_peer(self) -> int:
        """Connections of one address."""
        return self.max_connections_per_peer or _share(self.max_connections)

    def tls(self) -> ssl.SSLContext | None:
        """Return the context of encrypted connections, or None without a certificate."""
        if self.tls_cert is None or self.tls_key is None:
            return None
        for path in (self.tls_cert, self.tls_key):
            if not path.is_file():
                raise FileNotFoundError(f"there is no file {path}, the certificate or its key")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            # without a password OpenSSL would ask the terminal for one
            context.load_cert_chain(self.tls_cert, self.tls_key, password=lambda: b"")
        except ssl.SSLError as error:
            raise ValueError(
                f"{self.tls_cert} and {self.tls_key}: expected a certificate and its key without "
                f"a password, both in PEM ({error.reason or error})"
            ) from error
        return context

    def message_bytes(self, features: Features) -> int:
        """Return the largest message to receive, in bytes."""
        if self.max_message_bytes is not None:
            return self.max_message_bytes
        pixels = sum(view.height * view.width * 3 for view in features.views)
        slots = features.objects.count * features.objects.size if features.objects else 0
        return 4 * pixels + 8 * (features.proprioception + slots) + SLACK


def _share(count: int) -> int:
    return max(16, 3 * count // 4)
