"""Requests of clients: a decoded message becomes one of four requests, or a RequestError."""

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
    "not-finite",
    "refused",
    "failed",
]
LONGEST_NAME, LONGEST_INSTRUCTION = 64, 1000
LARGEST = 2**63 - 1


class RequestError(Exception):
    """The error of a request that is refused; everything stays as it was."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code: Code = code
        self.message = message


@dataclass(frozen=True, kw_only=True)
class Request:
    """Fields of all requests."""

    kind: ClassVar[str]
    request: int
    """Number on this connection, higher than all before; the reply repeats it."""
    session: str
    """Name that the client chooses, valid on this connection alone."""


@dataclass(frozen=True, kw_only=True)
class Open(Request):
    """A request to begin an episode."""

    kind: ClassVar[str] = "open"
    seed: int | None = None
    instruction: str | None = None
    keep: bool | None = None
    """Whether to keep the session for some time if the connection is lost."""


@dataclass(frozen=True, kw_only=True)
class Resume(Request):
    """A request to continue an episode that was begun on another connection."""

    kind: ClassVar[str] = "resume"
    secret: str


@dataclass(frozen=True, kw_only=True)
class Observe(Request):
    """A request to take one control tick into the memory."""

    kind: ClassVar[str] = "observe"
    tick: int
    observation: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Act(Request):
    """A request for a chunk of actions."""

    kind: ClassVar[str] = "act"
    steps: int | None = None


@dataclass(frozen=True, kw_only=True)
class Close(Request):
    """A request to end an episode."""

    kind: ClassVar[str] = "close"


KINDS: dict[str, type[Request]] = {kind.kind: kind for kind in (Open, Observe, Act, Close, Resume)}


def number_of(message: Mapping[str, Any]) -> int | None:
    """Return the number of a request, or None; replies to refused requests have it, too."""
    number = message.get("request")
    return number if _is_whole(number) else None


def parse(message: Mapping[str, Any], max_steps: int) -> Request:
    """Return the request in a decoded message, or raise a RequestError."""
    kind = message.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise RequestError(
            "bad-request", f"kind: expected one of {', '.join(KINDS)}, got {_describe(kind)}"
        )
    wanted = KINDS[kind]
    names = [each.name for each in fields(wanted)]
    unknown = [name for name in message if name != "kind" and name not in names]
    if unknown:
        raise RequestError(
            "bad-request",
            f"{kind}: there is no field {_describe(unknown[0])}; it has {', '.join(names)}",
        )
    given = {name: value for name, value in message.items() if name != "kind"}
    number, name = given.get("request"), given.get("session")
    _check(kind, "request", number, "a whole number from 0 on", _is_whole(number))
    fits = isinstance(name, str) and 1 <= len(name) <= LONGEST_NAME
    _check(kind, "session", name, f"a text of 1 to {LONGEST_NAME} characters", fits)
    if wanted is Open:
        _check_open(given)
    elif wanted is Resume:
        secret = given.get("secret")
        fits = isinstance(secret, str) and len(secret) <= LONGEST_NAME
        # what it is stays out of the reply, and out of logs
        _check(kind, "secret", type(secret).__name__, "the text that `open` returned", fits)
    elif wanted is Observe:
        tick = given.get("tick")
        _check(kind, "tick", tick, "a whole number from 0 on", _is_whole(tick))
        _check_observation(given.get("observation"))
    elif wanted is Act:
        steps = given.get("steps")
        fits = steps is None or (_is_whole(steps) and 1 <= steps <= max_steps)
        expected = (
            f"a whole number from 1 to {max_steps}, or nothing (the server was started with "
            f"--max-steps {max_steps})"
        )
        _check(kind, "steps", steps, expected, fits)
    return wanted(**given)


def _check_open(given: Mapping[str, Any]) -> None:
    seed, text = given.get("seed"), given.get("instruction")
    fits = seed is None or _is_whole(seed)
    _check("open", "seed", seed, "a whole number from 0 to 2^63 - 1, or nothing", fits)
    expected = f"a text of at most {LONGEST_INSTRUCTION} characters, or nothing"
    keep = given.get("keep")
    _check("open", "keep", keep, "true, false or nothing", keep is None or isinstance(keep, bool))
    fits = text is None or (isinstance(text, str) and len(text) <= LONGEST_INSTRUCTION)
    _check("open", "instruction", text, expected, fits)


def _check_observation(observation: Any) -> None:
    """Check the names and that they hold arrays; the policy checks the arrays."""
    _check("observe", "observation", observation, "a map", isinstance(observation, dict))
    known = ("proprioception", "images", "objects")
    unknown = [name for name in observation if name not in known]
    if unknown:
        raise RequestError(
            "bad-observation",
            f"observation: there is no {_describe(unknown[0])}; it has proprioception and, where "
            "the policy sees them, images and objects. An instruction is given once, with open",
        )
    body, images, objects = (observation.get(name) for name in known)
    _check_arrays("proprioception", body, "an array", isinstance(body, np.ndarray))
    fits = images is None or (
        isinstance(images, dict)
        and all(isinstance(n, str) and isinstance(i, np.ndarray) for n, i in images.items())
    )
    _check_arrays("images", images, "a map from view to array", fits)
    _check_arrays(
        "objects", objects, "an array", objects is None or isinstance(objects, np.ndarray)
    )


def _check_arrays(name: str, value: Any, expected: str, fits: bool) -> None:
    if not fits:
        message = f"{name}: expected {expected}, got {_describe(value)}"
        raise RequestError("bad-observation", message)


def _check(kind: str, name: str, value: Any, expected: str, fits: bool) -> None:
    if not fits:
        raise RequestError(
            "bad-request", f"{kind}: {name}: expected {expected}, got {_describe(value)}"
        )


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST


def _describe(value: Any) -> str:
    """Describe a received value, briefly enough for a reply."""
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
