"""Settings of an environment: the task, its dials, and the observations that a policy expects."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from chameleon_policy.camo.cameras import VIEWS
from chameleon_policy.camo.controller import ACTION_NAMES
from chameleon_policy.camo.dataset_variants import CHOICES
from chameleon_policy.camo.env import CamoEnv
from chameleon_policy.camo.nuisance import Level
from chameleon_policy.camo.play import save_clip, watch_actions
from chameleon_policy.camo.scoring import Score
from chameleon_policy.camo.tasks import Span, make_task
from chameleon_policy.camo.variants import AnswerShownEnv, GuessingEnv, OneChoiceEnv, OracleEnv
from chameleon_policy.suite import Mode, Spaces

Kind = Literal["policy", "told", "oracle", "guess"]
VARIANTS: dict[Kind, type[CamoEnv]] = {
    "policy": CamoEnv,
    "told": AnswerShownEnv,
    "oracle": OracleEnv,
    "guess": GuessingEnv,
}
RECORDED = ("task", "observation", "image_size", "retention_steps", "nuisance", "difficulty")
"""Fields that the settings of a recording have as well; `object_slots` only where it is set."""
NO_DIALS: Mapping[str, Any] = {}


@dataclass(frozen=True, kw_only=True)
class CamoSettings:
    """Settings from which every process can make the same environment."""

    suite: ClassVar[str] = "camo"

    task: str
    observation: Mode = "rgb"
    image_size: int = 128
    retention_steps: Span = (3, 10)
    nuisance: Level = "none"
    difficulty: dict[str, Span] = field(default_factory=dict)
    object_slots: int | None = None
    """Rows of object slots, for a policy that has more than the task needs; None: just as many."""
    kind: Kind = "policy"
    until_choice: int | None = None
    """End with the choice after this decision, counted from 0, and repeat the first observation
    before it; for memories that are edited.
    """

    @property
    def title(self) -> str:
        """The task, and whether the answer is shown."""
        return f"{self.task} and told the answer" if self.kind == "told" else self.task

    def make_env(self) -> CamoEnv:
        """Return a new environment."""
        difficulty: dict[str, Any] = self.difficulty
        if self.until_choice is not None:
            difficulty = {**difficulty, "until_choice": self.until_choice}
        variant = VARIANTS[self.kind] if self.until_choice is None else OneChoiceEnv
        return variant(
            self.task,
            observation=self.observation,
            image_size=self.image_size,
            retention_steps=self.retention_steps,
            nuisance=self.nuisance,
            object_slots=self.object_slots,
            **difficulty,
        )

    def save_video(self, seed: int, actions: np.ndarray, path: Path, size: int) -> Score:
        """Play an episode again, save it as a video with views of this size, return its score."""
        env = replace(self, observation="state", kind="policy").make_env()
        try:
            env.reset(seed=seed)
            save_clip(watch_actions(env, actions, size), path)
            return env.score()
        finally:
            env.close()

    def as_dict(self) -> dict[str, Any]:
        """Return the settings in JSON's types."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        del plain["until_choice"]  # no dial of the benchmark
        return without_object_slots(plain)


def without_object_slots(settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings as they are written: `object_slots` only where it is set."""
    if settings["object_slots"] is None:
        del settings["object_slots"]
    return settings


def observation_for(
    spaces: Spaces, task: str, difficulty: Mapping[str, Any] = NO_DIALS
) -> dict[str, Any]:
    """Return the settings of the observations for a policy with these spaces.

    ValueError if the policy was made for something else.
    """
    numbers = len(ACTION_NAMES)
    shows_answer = spaces.proprioception == numbers + CHOICES
    if spaces.action != numbers or not (shows_answer or spaces.proprioception == numbers):
        raise ValueError(
            f"Camo has {numbers} numbers of proprioception and {numbers} of action; this policy "
            f"has {spaces.proprioception} and {spaces.action}: it was trained for another robot"
        )
    kind: Kind = "told" if shows_answer else "policy"
    if spaces.objects is not None:
        known, (count, size) = make_task(task, difficulty), spaces.objects
        numbers = len(known.slot_names)
        if spaces.views or count < known.slots or size != numbers:
            raise ValueError(
                f"{task} has {known.slots} object slots of {numbers} numbers; this policy has "
                f"{count} of {size}: it was trained on another task, or with fewer objects"
            )
        more = None if count == known.slots else count
        return {"observation": "state", "object_slots": more, "kind": kind}
    return {"observation": "rgb", "image_size": _image_size(spaces.views), "kind": kind}


def _image_size(views: Mapping[str, tuple[int, int]]) -> int:
    sizes = set(views.values())
    height, width = next(iter(sizes))
    if set(views) != set(VIEWS) or len(sizes) != 1 or height != width:
        shown = ", ".join(f"{name} {size[0]} x {size[1]}" for name, size in views.items())
        raise ValueError(
            f"Camo has the square views {' and '.join(VIEWS)}; this policy has {shown}"
        )
    return height
