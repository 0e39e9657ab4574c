"""What a server says of its policy when a client connects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from chameleon_client.wire import PROTOCOL


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What the server allows."""

    message_bytes: int
    """Of one message."""
    sessions: int
    """Of all clients together."""
    waiting: int
    """Requests of one connection that may be unanswered; the server then stops reading until one
    is.
    """
    idle_seconds: float
    """Without a request, after which a session is closed."""
    sampling_steps: int
    """Of one chunk."""


@dataclass(frozen=True, kw_only=True)
class Metadata:
    """What the policy sees and does, and what the server allows."""

    protocol: int
    policy: str
    method: str
    version: str
    """Of the server's package."""
    views: Mapping[str, tuple[int, int]]
    """Height and width of every picture, by name."""
    proprioception: int
    action: int
    horizon: int
    """Actions of one chunk."""
    executed: int
    """Actions of a chunk to carry out before the next one is due."""
    sampling_steps: int
    """What `act` takes if it is not told."""
    objects: tuple[int, int] | None
    """Object slots and numbers of each, for policies that see no pictures."""
    language: bool
    """Whether `open` takes an instruction."""
    limits: Limits

    @classmethod
    def of(cls, message: Mapping[str, Any]) -> Metadata:
        """From a server's first message, or a ValueError if it is none of this protocol."""
        if message.get("kind") != "metadata" or message.get("protocol") != PROTOCOL:
            raise ValueError(
                f"expected the metadata of protocol {PROTOCOL}, got {message.get('kind')!r} of protocol "
                f"{message.get('protocol')!r}; client and server must be of fitting versions"
            )
        missing = [field.name for field in fields(cls) if field.name not in message]
        if missing:
            raise ValueError(f"the server's metadata lack {', '.join(missing)}")
        known = {field.name: message[field.name] for field in fields(cls)}
        known["views"] = {name: (size[0], size[1]) for name, size in message["views"].items()}
        known["objects"] = None if message["objects"] is None else tuple(message["objects"])
        known["limits"] = Limits(
            **{field.name: message["limits"][field.name] for field in fields(Limits)}
        )
        return cls(**known)
