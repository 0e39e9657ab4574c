"""Writing of files: whole or not at all, with errors that name them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

UNFINISHED = ".unfinished-"
"""Beginning of the name of a file that is being written; a killed process may leave one."""


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield a path to write to; the file there takes the place of `path` when it is complete.

    If that fails, as on a full disk, nothing of it is left, `path` stays as it was, and the error
    names it.
    """
    unfinished = path.with_name(f"{UNFINISHED}{os.getpid()}-{path.name}")
    try:
        with named(path, "; the earlier file of that name is kept" if path.exists() else ""):
            yield unfinished
            unfinished.replace(path)
    finally:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)


@contextmanager
def named(path: Path, kept: str = "") -> Iterator[None]:
    """Say in an OSError which file could not be written, and what is kept."""
    try:
        yield
    except OSError as error:
        raise OSError(f"cannot write {path}: {error.strerror or error}{kept}") from error


def check_folder(folder: Path, option: str) -> None:
    """Make a folder if need be, and raise a ValueError if no file can be written in it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ValueError(
            f"cannot write to {folder}: {error.strerror or error}. Choose another {option}"
        ) from error
