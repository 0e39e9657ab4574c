"""Settings of a server."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

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
    max_sessions: int = 32
    """Memories of all clients together, allocated on demand."""
    max_sessions_per_connection: int = 16
    """Memories of one client, so that none can have them all."""
    max_connections: int = 64
    max_waiting: int = 8
    """Unanswered requests of one connection, at which no more of it are read."""
    max_message_bytes: int | None = None
    """Bytes of one message; None: one observation with images in float32, and 64 KiB."""
    max_sampling_steps: int = 100
    """Sampling steps of one chunk, the cost of a single request."""
    idle_seconds: float = 120.0
    """Time without a request after which a session is closed; also a connection without any."""
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

    def message_bytes(self, features: Features) -> int:
        """Return the largest message to receive, in bytes."""
        if self.max_message_bytes is not None:
            return self.max_message_bytes
        pixels = sum(view.height * view.width * 3 for view in features.views)
        slots = features.objects.count * features.objects.size if features.objects else 0
        return 4 * pixels + 8 * (features.proprioception + slots) + SLACK
