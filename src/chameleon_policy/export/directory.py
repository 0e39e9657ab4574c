"""A directory that appears whole or not at all, and that takes the place of nothing but an
export.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from chameleon_policy.export.manifest import FILES, MANIFEST, read_manifest

OURS = {MANIFEST, *(name for files in FILES.values() for name in files.values())}


def check_place(out: Path) -> None:
    """ValueError if `out` holds something that is not an export."""
    if not out.exists():
        return
    if not out.is_dir():
        raise ValueError(f"{out} is a file; name another place: --out")
    found = {path.name for path in out.iterdir()}
    if not found:
        return
    try:
        read_manifest(out)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{out} is not empty and holds no exported policy that could be replaced ({error}); name another place: --out"
        ) from error
    if strangers := sorted(found - OURS):
        raise ValueError(
            f"{out} holds an exported policy, but also {', '.join(strangers)}; move that away, or use another --out"
        )


@contextmanager
def whole_directory(out: Path) -> Iterator[Path]:
    """A folder beside `out` to write into; at the end of the block it becomes `out`, and after an
    error it is gone.
    """
    check_place(out)
    out = out.resolve()
    out.parent.mkdir(parents=True, exist_ok=True)
    unfinished = out.with_name(f".{out.name}.unfinished-{os.getpid()}")
    unfinished.mkdir()
    try:
        yield unfinished
        check_place(out)  # minutes may have passed
        if out.exists():
            replaced = out.with_name(f".{out.name}.replaced-{os.getpid()}")
            out.rename(replaced)
            try:
                unfinished.rename(out)
            except OSError:
                replaced.rename(out)
                raise
            shutil.rmtree(replaced)
        else:
            unfinished.rename(out)
    finally:
        if unfinished.exists():
            shutil.rmtree(unfinished)
