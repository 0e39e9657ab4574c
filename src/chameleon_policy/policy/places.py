"""Where a saved policy lies: in a folder, in the package, or on the hub.

The hub is asked for `hf:owner/name` alone, so that a mistyped folder loads nobody's policy.
"""

from __future__ import annotations

import difflib
import re
from pathlib import Path

CONFIG, NORMALIZER, WEIGHTS = "config.json", "normalizer.json", "model.safetensors"
SHIPPED = Path(__file__).parents[1] / "pretrained"
"""Policies that come with the package, each in a folder of its name."""
HUB = "hf:"
"""Begins the name of a policy on the Hugging Face hub."""
NEAR = 3
"""Folders that are suggested in place of one that does not exist."""


def find_policy(place: str | Path) -> Path:
    """Return the folder of a local policy, a shipped one, or a snapshot from the hub."""
    path, text = Path(place), str(place)
    if text.startswith(HUB):
        return _complete(_download(text.removeprefix(HUB)))
    if text and path.is_dir():
        return _complete(path)
    if text in shipped():
        return _complete(SHIPPED / text)
    near = _near(path)
    suggestion = f"did you mean {' or '.join(near)}? " if near else ""
    raise FileNotFoundError(
        f"there is no directory {text}; {suggestion}A policy is the folder of a run or of "
        f"policy.save_pretrained, one that comes with the package ({', '.join(shipped())}), or "
        f"{HUB}OWNER/NAME on the Hugging Face hub"
    )


def shipped() -> list[str]:
    """Return the names of the policies that come with the package."""
    return sorted(config.parent.name for config in SHIPPED.glob(f"*/{CONFIG}"))


def check_inside(path: Path, folder: Path) -> None:
    """Raise a ValueError if a link leads out of a folder.

    In the hub's cache, the files of a snapshot are links to the folder `blobs` beside `snapshots`.
    """
    root = folder.resolve()
    root = root.parents[1] if root.parent.name == "snapshots" else root
    if not path.resolve().is_relative_to(root):
        raise ValueError(
            f"{path} is a link that leads out of its folder, to {path.resolve()}; if that is what "
            "you want, put the file itself there"
        )


def _near(path: Path) -> list[str]:
    """Return folders and shipped policies whose names are like that of a path."""
    folder = path.parent
    names = [each.name for each in folder.iterdir() if each.is_dir()] if folder.is_dir() else []
    found = [str(folder / name) for name in difflib.get_close_matches(path.name, names, n=NEAR)]
    return found + difflib.get_close_matches(str(path), shipped(), n=1)


def _download(name: str) -> Path:
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise ValueError(f"{HUB}{name}: a policy on the hub is named {HUB}OWNER/NAME")
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise ImportError(
            f"{HUB}{name}: loading from the hub needs: pip install 'chameleon-policy[hub]'"
        ) from error
    try:
        return Path(snapshot_download(name, allow_patterns=[CONFIG, NORMALIZER, WEIGHTS]))
    except Exception as error:  # the hub client raises many kinds
        raise FileNotFoundError(f"{HUB}{name} is not reachable on the hub: {error}") from error


def _complete(folder: Path) -> Path:
    for name in (CONFIG, NORMALIZER, WEIGHTS):
        if not (folder / name).is_file():
            found = ", ".join(sorted(path.name for path in folder.iterdir())) or "nothing"
            raise FileNotFoundError(
                f"{folder} is no saved policy: {name} is missing (it holds {found})"
            )
        check_inside(folder / name, folder)
    return folder
