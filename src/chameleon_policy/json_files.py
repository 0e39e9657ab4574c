"""JSON files, whose damage is an error in one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read_json(path: Path, remedy: str = "it may have been cut short: copy it again") -> Any:
    """Return what a JSON file holds; ValueError with the `remedy` if it is not valid JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except RecursionError as error:
        raise ValueError(f"{path} is not valid JSON (nested too deep); {remedy}") from error
    except ValueError as error:  # of the syntax, the encoding, or a number of thousands of digits
        raise ValueError(f"{path} is not valid JSON ({error}); {remedy}") from error


def read_json_object(path: Path, remedy: str = "it may have been cut short: copy it again") -> Any:
    """Return the object that a JSON file holds; ValueError if it holds something else."""
    found = read_json(path, remedy)
    if not isinstance(found, dict):
        raise ValueError(f"{path} must hold a JSON object, and holds {found!r:.40}; {remedy}")
    return found
