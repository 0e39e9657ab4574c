"""Authentication: clients on the same machine, and clients that know the token."""

from __future__ import annotations

import hmac
import ipaddress
import os
from pathlib import Path

VARIABLE = "CHAMELEON_TOKEN"
SHORTEST = 16
NEW_TOKEN = f"export {VARIABLE}=$(python3 -c 'import secrets; print(secrets.token_hex(32))')"
"""Command that makes a token."""


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address; of names, localhost alone counts."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_token(token: str) -> None:
    """Raise a ValueError if a token is too short, or cannot be sent in a header."""
    if len(token) < SHORTEST or not all("!" <= letter <= "~" for letter in token):
        raise ValueError(
            f"token: expected at least {SHORTEST} letters, digits or signs without spaces, "
            f"got {len(token)} characters; make one with: {NEW_TOKEN}"
        )


def find_token(token_file: Path | None = None) -> str | None:
    """Return the token in a file, or else in the environment, or None."""
    if token_file is not None:
        if not token_file.is_file():
            raise FileNotFoundError(f"--token-file: there is no file {token_file}")
        token = token_file.read_text().strip()
        if not token:
            raise ValueError(f"--token-file: {token_file} is empty")
        return token
    return os.environ.get(VARIABLE, "").strip() or None


def is_authorised(header: str | None, token: str | None) -> bool:
    """Return whether an Authorization header has the token; compare in constant time."""
    if token is None:
        return True
    scheme, _, given = (header or "").partition(" ")
    same = hmac.compare_digest(given.strip().encode(), token.encode())
    return same and scheme.lower() == "bearer"
