"""Who may talk to the server: whoever shares its machine, or knows its token."""

from __future__ import annotations

import hmac
import ipaddress
import os
from pathlib import Path

VARIABLE = "CHAMELEON_TOKEN"
SHORTEST = 16
NEW_TOKEN = f"export {VARIABLE}=$(python3 -c 'import secrets; print(secrets.token_hex(32))')"
"""The next command for someone without a token."""


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address; a name other than localhost may mean
    anything.
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_token(token: str) -> None:
    """ValueError if this is nothing to keep strangers out with, or cannot stand in a header."""
    if len(token) < SHORTEST or not all("!" <= letter <= "~" for letter in token):
        raise ValueError(
            f"token: expected at least {SHORTEST} letters, digits or signs without spaces, got {len(token)} characters; "
            f"make one with: {NEW_TOKEN}"
        )


def find_token(token_file: Path | None = None) -> str | None:
    """The token in a file, or else in the environment, or None."""
    if token_file is not None:
        if not token_file.is_file():
            raise FileNotFoundError(f"--token-file: there is no file {token_file}")
        token = token_file.read_text().strip()
        if not token:
            raise ValueError(f"--token-file: {token_file} is empty")
        return token
    return os.environ.get(VARIABLE, "").strip() or None


def is_authorised(header: str | None, token: str | None) -> bool:
    """Whether an Authorization header has the token; how long the comparison takes tells nothing of
    it.
    """
    if token is None:
        return True
    scheme, _, given = (header or "").partition(" ")
    same = hmac.compare_digest(given.strip().encode(), token.encode())
    return same and scheme.lower() == "bearer"
