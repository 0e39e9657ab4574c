"""Which episodes a policy is asked to play: the task, its dials, and observations of the kind it
was made for.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from chameleon_policy.camo import CamoEnv, task_named
from chameleon_policy.camo.cameras import VIEWS
from chameleon_policy.camo.env import SLOT_NAMES, Mode
from chameleon_policy.camo.nuisance import Level
from chameleon_policy.camo.recording import SETTINGS
from chameleon_policy.camo.tasks import Span
from chameleon_policy.camo.told import CHOICES, ToldEnv
from chameleon_policy.evaluate.choosing_env import ChoosingEnv
from chameleon_policy.evaluate.oracle_env import GuessingEnv, OracleEnv

if TYPE_CHECKING:  # the processes of the environments start without torch
    from chameleon_policy.policy import Features

Kind = Literal["policy", "told", "oracle", "guess"]
ENVIRONMENTS: dict[Kind, type[CamoEnv]] = {
    "policy": CamoEnv,
    "told": ToldEnv,
    "oracle": OracleEnv,
    "guess": GuessingEnv,
}


@dataclass(frozen=True, kw_only=True)
class CamoSettings:
    """An environment that can be made anew in every process."""

    task: str
    observation: Mode = "rgb"
    image_size: int = 128
    retention_steps: Span = (3, 10)
    nuisance: Level = "none"
    difficulty: dict[str, Span] = field(default_factory=dict)
    kind: Kind = "policy"
    until_choice: int | None = None
    """End with the choice after this decision, counted from 0, and show nothing before it; for
    memories that are edited.
    """

    def make_env(self) -> CamoEnv:
        """A new environment."""
        difficulty: dict[str, Any] = self.difficulty
        if self.until_choice is not None:
            difficulty = {**difficulty, "until_choice": self.until_choice}
        kind = ENVIRONMENTS[self.kind] if self.until_choice is None else ChoosingEnv
        return kind(
            self.task,
            observation=self.observation,
            image_size=self.image_size,
            retention_steps=self.retention_steps,
            nuisance=self.nuisance,
            **difficulty,
        )

    def as_dict(self) -> dict[str, Any]:
        """In JSON's types."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        del plain["until_choice"]  # no dial of the benchmark
        return plain


def observation_of(features: Features, task: str) -> dict[str, Any]:
    """What the environment must show to a policy with these features, or a ValueError if it was
    made for something else.
    """
    kind = task_named(task)
    told = features.proprioception == 10 + CHOICES
    if features.action != 10 or not (told or features.proprioception == 10):
        raise ValueError(
            f"Camo has 10 numbers of proprioception and 10 of action; this policy has {features.proprioception} and "
            f"{features.action}: it was trained for another robot"
        )
    if features.objects is not None:
        slots = len(kind.candidates) + len(kind.others) + len(kind.hands)
        if features.views or (features.objects.count, features.objects.size) != (
            slots,
            len(SLOT_NAMES),
        ):
            raise ValueError(
                f"{task} has {slots} object slots of {len(SLOT_NAMES)} numbers; this policy has {features.objects.count} of "
                f"{features.objects.size}: it was trained on another task"
            )
        return {"observation": "state", "kind": "told" if told else "policy"}
    sizes = {(view.height, view.width) for view in features.views}
    if (
        {view.name for view in features.views} != set(VIEWS)
        or len(sizes) != 1
        or len(set(next(iter(sizes)))) != 1
    ):
        shown = ", ".join(f"{view.name} {view.height} x {view.width}" for view in features.views)
        raise ValueError(
            f"Camo has the square views {' and '.join(VIEWS)}; this policy has {shown}"
        )
    return {
        "observation": "rgb",
        "image_size": features.views[0].height,
        "kind": "told" if told else "policy",
    }


def settings_of_recording(dataset: Path) -> CamoSettings:
    """The environment that a dataset was recorded in."""
    path = dataset / SETTINGS
    if not path.is_file():
        raise ValueError(
            f"{dataset} is no recording of Camo ({SETTINGS} is missing): there is no environment to watch it in. Leave out "
            "--watch-times, or look at --held-out demonstrations only: --watch-episodes 0"
        )
    names = ("task", "observation", "image_size", "retention_steps", "nuisance", "difficulty")
    try:
        recorded = json.loads(path.read_text())
        return CamoSettings(**{name: recorded[name] for name in names})
    except (json.JSONDecodeError, KeyError) as error:
        raise ValueError(
            f"{path} is damaged ({error!r}); record or copy the dataset again"
        ) from error
