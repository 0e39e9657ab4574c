"""Events of an episode, the only input of scoring."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal[
    "decision",  # the scene is aliased and the arm at its decision pose: the next choice is due
    "touched",  # the gripper touched it
    "raised",  # it left the table
    "lifted",  # it was lifted as high as the task asks
    "lowered",  # it stands on the table again after having been raised
    "dropped",  # it left the gripper above the table
    "toppled",  # it fell over
    "moved",  # it was pushed further than the task allows
    "wiped",  # the sponge was over enough of it
    "shaken",  # it was shaken over the bowl
    "added",  # shaken, back in its place, and the arm back at the decision pose
    "returned",  # lifted, back in its place, and the arm back at the decision pose
    "timeout",  # the time for the execution is over
    "diverged",  # the simulation became unstable
]


@dataclass(frozen=True)
class Event:
    """Something that happened to an object (or to the episode) at a control step."""

    step: int
    kind: Kind
    object: str = ""


def names(events: Iterable[Event], kind: Kind) -> list[str]:
    """Return the objects with events of a kind, in order, each once."""
    return list(dict.fromkeys(event.object for event in events if event.kind == kind))


def happened(events: Sequence[Event], kind: Kind) -> bool:
    """Return whether there is an event of a kind."""
    return any(event.kind == kind for event in events)
