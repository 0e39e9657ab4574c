"""The robot's side of a Chameleon policy server.

Read in this order: wire (messages and their bytes) -> metadata -> errors -> client -> session.
"""

from chameleon_client.client import Client
from chameleon_client.errors import ConnectionLost, ServerError, Timeout
from chameleon_client.metadata import Limits, Metadata
from chameleon_client.session import Session
from chameleon_client.wire import WireError

__version__ = "0.1.0"
__all__ = [
    "Client",
    "ConnectionLost",
    "Limits",
    "Metadata",
    "ServerError",
    "Session",
    "Timeout",
    "WireError",
]
