"""The metadata that a server sends when a client connects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from chameleon_client.wire import PROTOCOL


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of a server."""

    message_bytes: int
    """Bytes of one message."""
    sessions: int
    """Open sessions of all clients together."""
    waiting: int
    """Unanswered requests of one connection; at the limit, the server reads no more of them."""
    idle_seconds: float
    """Seconds without a request after which a session is closed."""
    sampling_steps: int
    """Sampling steps of one chunk."""


@dataclass(frozen=True, kw_only=True)
class Metadata:
    """The inputs and outputs of a served policy, and the limits of the server."""

    protocol: int
    policy: str
    method: str
    version: str
    """Version of the server's package."""
    views: Mapping[str, tuple[int, int]]
    """Height and width of every image, by view."""
    proprioception: int
    action: int
    horizon: int
    """Actions of one chunk."""
    executed: int
    """Actions of a chunk to carry out before the next one is due."""
    sampling_steps: int
    """Sampling steps of a chunk where `act` names no others."""
    objects: tuple[int, int] | None
    """Object slots and numbers per slot, for policies that observe objects in place of images."""
    language: bool
    """Whether `open` takes an instruction."""
    limits: Limits

    @classmethod
    def of(cls, message: Mapping[str, Any]) -> Metadata:
        """Read a server's first message; raise a ValueError if it follows another protocol."""
        if message.get("kind") != "metadata" or message.get("protocol") != PROTOCOL:
            raise ValueError(
                f"expected the metadata of protocol {PROTOCOL}, got {message.get('kind')!r} of "
                f"protocol {message.get('protocol')!r}; install client and server of one version"
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
