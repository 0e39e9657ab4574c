"""The settings of a run: written when it begins, compared when it goes on.

A run goes on with the same settings. Only what changes no step that was taken may differ: where its
checkpoints are, and a budget that has grown.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chameleon_policy.json_files import read_json_object
from chameleon_policy.train.checkpoint import RUN_SETTINGS
from chameleon_policy.writing import UNFINISHED, whole_file

LOCK = "lock"
BUDGETS = ("steps", "minutes")
CHECKPOINTS = ("checkpoint_minutes", "checkpoint_steps", "keep_checkpoints")
EARLIER = "earlier_budgets"
"""Key of the budgets that a run had before it was extended."""
NOT_COMPARED = (
    "git_revision",
    "training.fused",
    EARLIER,
    *(f"training.{name}" for name in CHECKPOINTS),
)
"""Settings that may differ when a run is resumed."""


@dataclass(frozen=True)
class Extension:
    """A budget that has grown."""

    kind: str
    """steps or minutes."""
    before: float
    now: float


def write_settings(out: Path, settings: dict[str, Any]) -> Extension | None:
    """Write the settings of a new run, or check that the run in this folder has the same ones.

    Returns what has grown, if the run goes on with a larger budget.
    """
    path = out / RUN_SETTINGS
    if not path.exists():
        if any(not child.name.startswith((LOCK, UNFINISHED)) for child in out.iterdir()):
            raise FileExistsError(f"{out} holds files of something else; choose another --out")
        _write(path, settings)
        return None
    then = read_json_object(path, f"choose another --out, or delete the folder {out}")
    extension = _extension(then.get("training"), settings["training"])
    grown = f"training.{extension.kind}" if extension else None
    changed = [
        f"{key}: {before} then, {now} now{_remedy(key, before)}"
        for key, before, now in differences(then, settings)
        if key not in NOT_COMPARED and key != grown
    ]
    if changed:
        raise FileExistsError(
            f"{out} holds a run with other settings ({'; '.join(changed[:5])}). Give the same "
            "settings to go on with it, or choose another --out"
        )
    kept = {name: settings["training"].get(name) for name in (*BUDGETS, *CHECKPOINTS)}
    updated = then | {"training": then["training"] | kept}
    if extension:
        updated[EARLIER] = [*then.get(EARLIER, []), {extension.kind: extension.before}]
    if differences(then, updated):
        _write(path, updated)
    return extension


def differences(then: Any, now: Any, key: str = "") -> list[tuple[str, Any, Any]]:
    """Return key, earlier value and present value of every setting that differs."""
    if (then is None and not now) or (now is None and not then):
        return []  # a setting that was added or removed since, and is off
    if isinstance(then, dict) and isinstance(now, dict):
        return [
            difference
            for name in dict.fromkeys([*then, *now])
            for difference in differences(
                then.get(name), now.get(name), f"{key}.{name}".lstrip(".")
            )
        ]
    return [] if then == now else [(key, then, now)]


def _extension(then: Any, now: dict[str, Any]) -> Extension | None:
    """Return the budget that has grown; None if none has."""
    for kind in BUDGETS:
        before, after = (then.get(kind) if isinstance(then, dict) else None), now.get(kind)
        if isinstance(before, (int, float)) and after is not None and after > before:
            return Extension(kind, before, after)
    return None


def _remedy(key: str, before: Any) -> str:
    """Return how to resume a run where the option to do so is not the obvious one."""
    if key.endswith("half_life_limit") and before is None:
        return " (add --half-life-limit inf)"
    if key in ("training.steps", "training.minutes") and before is not None:
        return " (a budget can grow, not shrink or change its kind)"
    return " (give the same --size)" if key == "features.views" else ""


def _write(path: Path, settings: dict[str, Any]) -> None:
    with whole_file(path) as unfinished:
        unfinished.write_text(json.dumps(settings, indent=2) + "\n")
