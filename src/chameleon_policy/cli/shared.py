"""What several commands share."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

Preset = Literal["paper", "small", "nano"]
Where = Literal["auto", "cpu", "cuda"]


def typed() -> str:
    """The command as somebody typed it, for the files that it writes."""
    return " ".join(["chameleon", *sys.argv[1:]])


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Say which extra to install when one of its packages is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        # The client of the server is a package of its own, beside this one in the repository.
        client = "-e packages/chameleon_client " if "serve" in name else ""
        said = f"pip install {client}-e '.[{name}]'" if client else f"pip install 'chameleon-policy[{name}]'"
        raise ImportError(f"this command needs {error.name}: {said}") from error
