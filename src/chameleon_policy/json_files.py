"""JSON files, whose damage is an error in one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

CUT_SHORT = "it may have been cut short: copy it again"


def parse_json(text: str | bytes, where: object, remedy: str = CUT_SHORT) -> Any:
    """Return what a JSON text holds; ValueError with place and `remedy` if it is damaged."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError(f"{where} is not valid JSON (nested too deep); {remedy}") from error
    # of the syntax, the encoding, a number of thousands of digits; of what is no text at all
    except (ValueError, TypeError) as error:
        raise ValueError(f"{where} is not valid JSON ({error}); {remedy}") from error


def parse_json_object(text: str | bytes, where: object, remedy: str = CUT_SHORT) -> dict[str, Any]:
    """Return the object that a JSON text holds; ValueError if it holds something else."""
    found = parse_json(text, where, remedy)
    if not isinstance(found, dict):
        kind = type(found).__name__
        raise ValueError(f"{where} must hold a JSON object, and holds a {kind}; {remedy}")
    return found


def read_json(path: Path, remedy: str = CUT_SHORT) -> Any:
    """Return what a JSON file holds."""
    return parse_json(path.read_bytes(), path, remedy)


def read_json_object(path: Path, remedy: str = CUT_SHORT) -> dict[str, Any]:
    """Return the object that a JSON file holds; ValueError if it holds something else."""
    return parse_json_object(path.read_bytes(), path, remedy)
