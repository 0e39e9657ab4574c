"""Files of datasets that somebody else wrote: where they may lie, and how large they may be.

A dataset names paths and announces sizes. Nothing outside its folder is read, and what it announces
is compared with these limits before memory is asked for.
"""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any

from chameleon_policy.json_files import parse_json_object

LARGEST_JSON = 16 * 2**20
"""Bytes of a JSON file."""
LARGEST_VECTOR = 65_536
"""Numbers of a feature at one time step."""
LARGEST_SIDE = 8_192
"""Pixels along one side of a picture."""
MOST_EPISODES = 1_000_000


def read_json(path: Path | zipfile.Path) -> dict[str, Any]:
    """Return the object in a JSON file."""
    with path.open("rb") as file:
        text = file.read(LARGEST_JSON + 1)
    if len(text) > LARGEST_JSON:
        raise ValueError(
            f"{path} is larger than {LARGEST_JSON // 2**20} MiB, the most that is read of a JSON "
            "file; copy the dataset again"
        )
    return parse_json_object(text, path, "copy the dataset again")


def inside(root: Path, name: str, named_by: str) -> Path:
    """Return the path of a file in a dataset's folder, or raise a ValueError if it is outside.

    Args:
        root: Folder of the dataset.
        name: Path relative to it, by the dataset's own metadata.
        named_by: What names the path, for the message.
    """
    path, home = root / name, root.resolve()
    # a download of the hub: every file is a link to its content
    homes = (home, home.parents[1] / "blobs") if home.parent.name == "snapshots" else (home,)
    try:
        found = path.resolve()
        path.is_file()  # raises an error for a name that is too long
        leaves = ".." in Path(name).parts or not any(map(found.is_relative_to, homes))
    # names with a null character or of megabytes, and links in a circle
    except (ValueError, OSError, RuntimeError) as error:
        raise ValueError(
            f"{named_by} names no file: {name[:100]!r} ({type(error).__name__}); copy the dataset "
            "again"
        ) from error
    if leaves:
        raise ValueError(
            f"{named_by} leads outside {root}: {path} is {found}. Only files inside the "
            "dataset's folder are read; if you trust it, copy the files there (cp -rL follows "
            "links)"
        )
    return path


def check_links(root: Path) -> None:
    """Raise a ValueError if a symbolic link in a folder leads out of it."""
    for folder, folders, files in os.walk(root):
        for name in (*folders, *files):
            path = Path(folder, name)
            if path.is_symlink():
                inside(root, str(path.relative_to(root)), f"the link {path}")
