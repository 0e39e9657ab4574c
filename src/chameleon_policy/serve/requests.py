"""What clients may ask for: decoded messages become one of four requests, or a Refusal that says
why not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal

import numpy as np

Code = Literal[
    "bad-request",
    "replayed",
    "unknown-session",
    "session-exists",
    "too-many-sessions",
    "bad-instruction",
    "wrong-tick",
    "bad-observation",
    "nothing-observed",
    "refused",
    "failed",
]
LONGEST_NAME, LONGEST_INSTRUCTION = 64, 1000
LARGEST = 2**63 - 1


class Refusal(Exception):  # noqa: N818
    """A request that is not carried out; everything stays as it was."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code: Code = code
        self.message = message


@dataclass(frozen=True, kw_only=True)
class Request:
    """What all requests have."""

    kind: ClassVar[str]
    request: int
    """Its number on this connection, which the reply repeats; higher than all before."""
    session: str
    """A name that the client chooses; it means something on this connection alone."""


@dataclass(frozen=True, kw_only=True)
class Open(Request):
    """Begin an episode."""

    kind: ClassVar[str] = "open"
    seed: int | None = None
    instruction: str | None = None


@dataclass(frozen=True, kw_only=True)
class Observe(Request):
    """Take in one control tick."""

    kind: ClassVar[str] = "observe"
    tick: int
    observation: Mapping[str, Any]
    decision: bool = False
    """Whether one is due: what the policy itself has planned before is dropped."""


@dataclass(frozen=True, kw_only=True)
class Act(Request):
    """Plan a chunk of actions."""

    kind: ClassVar[str] = "act"
    steps: int | None = None


@dataclass(frozen=True, kw_only=True)
class Close(Request):
    """End an episode."""

    kind: ClassVar[str] = "close"


KINDS: dict[str, type[Request]] = {kind.kind: kind for kind in (Open, Observe, Act, Close)}


def number_of(message: Mapping[str, Any]) -> int | None:
    """The request's number, if it has one: even a refused request gets it back."""
    number = message.get("request")
    return number if _is_whole(number) else None


def parse(message: Mapping[str, Any], max_steps: int) -> Request:
    """The request that a decoded message is, or a Refusal."""
    kind = message.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise Refusal(
            "bad-request", f"kind: expected one of {', '.join(KINDS)}, got {_shown(kind)}"
        )
    wanted = KINDS[kind]
    names = [each.name for each in fields(wanted)]
    unknown = [name for name in message if name != "kind" and name not in names]
    if unknown:
        raise Refusal(
            "bad-request",
            f"{kind}: there is no field {_shown(unknown[0])}; it has {', '.join(names)}",
        )
    given = {name: value for name, value in message.items() if name != "kind"}
    _check(
        kind,
        "request",
        given.get("request"),
        "a whole number from 0 on",
        _is_whole(given.get("request")),
    )
    name = given.get("session")
    fits = isinstance(name, str) and 1 <= len(name) <= LONGEST_NAME
    _check(kind, "session", name, f"a text of 1 to {LONGEST_NAME} characters", fits)
    if wanted is Open:
        seed, text = given.get("seed"), given.get("instruction")
        _check(
            kind,
            "seed",
            seed,
            "a whole number from 0 to 2^63 - 1, or nothing",
            seed is None or _is_whole(seed),
        )
        fits = text is None or (isinstance(text, str) and len(text) <= LONGEST_INSTRUCTION)
        _check(
            kind,
            "instruction",
            text,
            f"a text of at most {LONGEST_INSTRUCTION} characters, or nothing",
            fits,
        )
    elif wanted is Observe:
        _check(
            kind,
            "tick",
            given.get("tick"),
            "a whole number from 0 on",
            _is_whole(given.get("tick")),
        )
        decision = given.get("decision", False)
        _check(kind, "decision", decision, "true or false, or nothing", isinstance(decision, bool))
        _check_observation(given.get("observation"))
    elif wanted is Act:
        steps = given.get("steps")
        fits = steps is None or (_is_whole(steps) and 1 <= steps <= max_steps)
        _check(kind, "steps", steps, f"a whole number from 1 to {max_steps}, or nothing", fits)
    return wanted(**given)


def _check_observation(seen: Any) -> None:
    """The right names with arrays behind them; what is in the arrays is for the policy to judge."""
    _check("observe", "observation", seen, "a map", isinstance(seen, dict))
    unknown = [name for name in seen if name not in ("proprioception", "images", "objects")]
    if unknown:
        raise Refusal(
            "bad-observation",
            f"observation: there is no {_shown(unknown[0])}; it has proprioception and, where the policy sees them, images "
            "and objects. An instruction is given once, with open",
        )
    if not isinstance(seen.get("proprioception"), np.ndarray):
        raise Refusal(
            "bad-observation",
            f"proprioception: expected an array, got {_shown(seen.get('proprioception'))}",
        )
    images = seen.get("images")
    if images is not None and not (
        isinstance(images, dict)
        and all(isinstance(n, str) and isinstance(i, np.ndarray) for n, i in images.items())
    ):
        raise Refusal(
            "bad-observation", f"images: expected a map from view to array, got {_shown(images)}"
        )
    if seen.get("objects") is not None and not isinstance(seen["objects"], np.ndarray):
        raise Refusal(
            "bad-observation", f"objects: expected an array, got {_shown(seen['objects'])}"
        )


def _check(kind: str, name: str, value: Any, expected: str, fits: bool) -> None:
    if not fits:
        raise Refusal("bad-request", f"{kind}: {name}: expected {expected}, got {_shown(value)}")


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST


def _shown(value: Any) -> str:
    """Something a client sent, short enough to be sent back."""
    if value is None:
        return "nothing"
    if isinstance(value, (str, int, float)):
        text = repr(value)
        return text if len(text) <= 80 else f"{text[:80]}..."
    return (
        f"an array of {value.dtype.name} {value.shape}"
        if isinstance(value, np.ndarray)
        else f"a {type(value).__name__}"
    )
