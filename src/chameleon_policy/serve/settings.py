"""Where a server listens and what it allows."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from chameleon_policy.policy import Features
from chameleon_policy.serve.authentication import NEW_TOKEN, check_token, is_loopback

SLACK = 64 * 1024
"""Bytes of a message beyond its numbers: names, headers, an instruction."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Where a server listens and what it allows. Seconds and counts are positive."""

    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 for every network card, which needs a token."""
    port: int = 8765
    """0: any that is free."""
    token: str | None = field(default=None, repr=False)
    """What clients have to know; None: nothing, which is allowed on this machine alone."""
    max_sessions: int = 32
    """Memories, of all clients together. They are made as they are needed."""
    max_sessions_per_connection: int = 16
    """So that no client has them all."""
    max_connections: int = 64
    max_waiting: int = 8
    """Requests of one connection that are not answered yet; after that nothing more is read from
    it.
    """
    max_message_bytes: int | None = None
    """None: one observation with pictures in float32, and 64 KiB."""
    max_sampling_steps: int = 100
    """Of one chunk: what a single request can ask the processor for."""
    idle_seconds: float = 120.0
    """Without a request, after which a session is closed, and a connection that has none."""
    send_seconds: float = 10.0
    """A client that takes longer to receive one reply is dropped."""
    ping_seconds: float = 20.0
    """Between pings, and for an answer to one: a machine that vanished is noticed after twice
    that.
    """
    close_seconds: float = 2.0
    """What clients get to say goodbye when the server stops."""

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
                f"host: {self.host or 'every address'} can be reached from other machines, and there is no token. "
                f"Make one with: {NEW_TOKEN}  or serve this machine alone with: --host 127.0.0.1"
            )

    def message_bytes(self, features: Features) -> int:
        """The longest message that is received."""
        if self.max_message_bytes is not None:
            return self.max_message_bytes
        pixels = sum(view.height * view.width * 3 for view in features.views)
        slots = features.objects.count * features.objects.size if features.objects else 0
        return 4 * pixels + 8 * (features.proprioception + slots) + SLACK
