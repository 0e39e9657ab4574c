"""The listening sockets: how many connections are let in, before anything of them is read.

Decisions
- Connections count from the moment they are accepted: what never finishes its handshake takes a
  file of this process, too. Every address has a number of its own, so that one stranger cannot
  keep the others out.
- A connection beyond a limit is closed at once. Nothing is logged here, since anybody can cause any
  number of them: `refused` counts.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

RESERVE = 32
"""Files that are left to the rest of the process."""
UNLIMITED = 2**16
"""Connections where there is no limit of files."""
HALF_OPEN = 16
"""Connections of one address in the middle of a handshake, beside those that are through."""


def peer_of(address: tuple[Any, ...]) -> str:
    """Return by what a client's address counts: of IPv6 its network, which one machine may have."""
    ip = ipaddress.ip_address(str(address[0]).partition("%")[0])
    if isinstance(ip, ipaddress.IPv4Address):
        return str(ip)
    if ip.ipv4_mapped is not None:
        return str(ip.ipv4_mapped)
    return str(ip) if ip.is_loopback else str(ipaddress.ip_network((ip, 64), strict=False))


def files_left() -> int:
    """Return how many connections this process may hold with its limit of open files."""
    try:
        import resource
    except ImportError:  # Windows
        return UNLIMITED
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return UNLIMITED
    used = RESERVE
    with suppress(OSError):  # only Linux has this folder
        used = sum(1 for _ in Path("/proc/self/fd").iterdir())
    return max(1, limit - used - RESERVE)


class Guests:
    """The connections that are open, by address."""

    def __init__(
        self, most: int, most_per_peer: int, refused: Callable[[str, str], object]
    ) -> None:
        """`refused` is called with the address and the reason of every connection not let in."""
        self.most, self.most_per_peer = most, most_per_peer
        self._refused = refused
        self._open: dict[str, list[socket.socket]] = defaultdict(list)
        self._count = 0
        """Number of sockets in `_open`, some of which may be closed."""

    def admit(self, connection: socket.socket, peer: str) -> bool:
        """Return whether this connection may come in; count it if so."""
        if len(self._open.get(peer, ())) >= self.most_per_peer or self._count >= self.most:
            self._forget_closed()
        if len(self._open.get(peer, ())) >= self.most_per_peer:
            self._refused(peer, "too many connections of this address")
        elif self._count >= self.most:
            self._refused(peer, "too many open files")
        else:
            self._open[peer].append(connection)
            self._count += 1
            return True
        return False

    def _forget_closed(self) -> None:
        for peer, connections in list(self._open.items()):
            connections[:] = [each for each in connections if each.fileno() != -1]
            if not connections:
                del self._open[peer]
        self._count = sum(map(len, self._open.values()))


class Door(socket.socket):
    """A listening socket that closes connections beyond the limits of its guests."""

    guests: Guests

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection, or raise a BlockingIOError as if there was none."""
        connection, address = super().accept()
        if not self.guests.admit(connection, peer_of(address)):
            connection.close()
            raise BlockingIOError
        return connection, address


def open_doors(host: str, port: int, guests: Guests) -> list[Door]:
    """Listen on all addresses of a host; an empty one stands for every address of the machine."""
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    doors: list[Door] = []
    try:
        for family, _, _, _, address in dict.fromkeys(found):
            try:
                plain = socket.create_server(address, family=family)
            except OSError as error:
                # a machine without IPv6 has a name for it all the same
                missing = error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
                if missing and len(found) > len(doors) + 1:
                    continue
                raise
            doors.append(Door(fileno=plain.detach()))
            doors[-1].guests = guests
    except OSError:
        for door in doors:
            door.close()
        raise
    return doors
