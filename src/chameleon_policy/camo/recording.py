"""Settings of a recording of Camo, and single demonstrations."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

import numpy as np

from chameleon_policy.camo.cameras import VIEWS
from chameleon_policy.camo.controller import ACTION_NAMES
from chameleon_policy.camo.env import CamoEnv
from chameleon_policy.camo.experts import make_expert
from chameleon_policy.camo.nuisance import Level
from chameleon_policy.camo.settings import RECORDED, CamoSettings, without_object_slots
from chameleon_policy.camo.tasks import Answer, Span, make_task, task_named
from chameleon_policy.camo.world import CONTROL_HZ
from chameleon_policy.data import Schema
from chameleon_policy.seeds import recording_seed, stream
from chameleon_policy.suite import Demonstration, Mode

LARGEST_NOISE = 5.0


@dataclass(frozen=True, kw_only=True)
class Recording:
    """Settings of a recording.

    Equal settings give equal datasets, whatever the number of processes.
    """

    suite: ClassVar[str] = "camo"

    task: str
    episodes: int = 120
    seed: int = 0
    observation: Mode = "rgb"
    image_size: int = 128
    retention_steps: Span = (3, 10)
    nuisance: Level = "none"
    noise: float = 1.0
    difficulty: dict[str, Span] = field(default_factory=dict)
    """The task's dials; those of its `practice` are added where they are not given."""
    object_slots: int | None = None
    """Rows of object slots; None: as many as the task has objects."""

    def __post_init__(self) -> None:
        for name, number in (
            ("episodes", self.episodes),
            ("seed", self.seed),
            ("image_size", self.image_size),
        ):
            if not isinstance(number, int) or isinstance(number, bool):
                raise ValueError(f"{name} must be a whole number, got {number!r}")
        if self.episodes < 1:
            raise ValueError(f"episodes must be at least 1, got {self.episodes}")
        if not isinstance(self.noise, (int, float)) or not 0 <= self.noise <= LARGEST_NOISE:
            raise ValueError(f"noise must be between 0 and {LARGEST_NOISE}, got {self.noise!r}")
        dials = {**task_named(self.task).practice, **self.difficulty}
        object.__setattr__(self, "difficulty", dials)
        make_task(self.task, self.difficulty)
        if self.observation == "rgb" and self.image_size % 2:
            raise ValueError(
                "image_size must be even (videos store colour at half the resolution), "
                f"got {self.image_size}"
            )
        if self.observation == "rgb" and self.object_slots is not None:
            raise ValueError(
                f"object_slots = {self.object_slots} is for recordings of object slots; "
                "set observation to state"
            )
        recording_seed(self.seed, self.episodes - 1, 0, self.episodes)
        self.make_env().close()  # a wrong parameter is refused here, before anything is written

    @property
    def instruction(self) -> str:
        """The task in words."""
        return task_named(self.task).instruction

    def make_env(self) -> CamoEnv:
        """Return a new environment with these settings."""
        settings = {name: getattr(self, name) for name in RECORDED}
        return CamoSettings(**settings, object_slots=self.object_slots).make_env()

    def answer(self, episode: int, seed: int | None = None) -> Answer:
        """Return z of the episode with this index, played from this seed (default: the first try).

        Every block of as many episodes as there are answers has each of them once, in random order.
        Where a dial decides which answers there are, the episodes that draw the same number have
        blocks of their own.
        """
        task = make_task(self.task, self.difficulty)

        def first_draw(episode: int) -> dict[str, int]:
            return task.draw(recording_seed(self.seed, episode, 0, self.episodes))

        task.drawn = first_draw(episode) if seed is None else task.draw(seed)
        answers = task.possible
        before = sum(first_draw(earlier) == task.drawn for earlier in range(episode))
        block, index = divmod(before, len(answers))
        order = stream(self.seed, "balance", block).permutation(len(answers))
        return answers[int(order[index])]

    def demonstrate(self, env: CamoEnv, episode: int, seed: int) -> Demonstration:
        """Let the expert play the episode with this index from this seed."""
        return demonstrate(env, seed, self.answer(episode, seed), noise=self.noise)

    def schema(self) -> Schema:
        """Return the features of the dataset."""
        vectors: dict[str, tuple[str, ...]] = {
            "observation.state": ACTION_NAMES,
            "action": ACTION_NAMES,
        }
        views = {}
        if self.observation == "rgb":
            views = dict.fromkeys(VIEWS, (self.image_size, self.image_size))
        else:
            task = make_task(self.task, self.difficulty)
            slots = range(self.object_slots or task.slots)
            names = tuple(f"slot{slot}.{name}" for slot in slots for name in task.slot_names)
            vectors["observation.environment_state"] = names
        return Schema(fps=CONTROL_HZ, robot_type="ur5e", views=views, vectors=vectors)

    def as_dict(self) -> dict[str, Any]:
        """Return the settings in JSON's types."""
        return without_object_slots(json.loads(json.dumps(asdict(self))))


def demonstrate(
    env: CamoEnv,
    seed: int,
    z: Answer | None = None,
    *,
    noise: float = 1.0,
    wrong_choice: Answer | None = None,
) -> Demonstration:
    """Let the task's expert play one episode."""
    observation, info = env.reset(seed=seed, options={"z": z})
    expert = make_expert(env, noise=noise, wrong_choice=wrong_choice)
    observations, actions, over = [], [], False
    while not over:
        step = expert.act()
        observations.append(observation)
        actions.append(step.action)
        observation, _, terminated, truncated, info = env.step(step.executed)
        over = terminated or truncated
    return Demonstration(
        observations, np.asarray(actions, np.float32), info["score"], annotate(env)
    )


def annotate(env: CamoEnv) -> dict[str, Any]:
    """Return the facts of a finished episode."""
    result = env.score()
    facts = {
        "seed": env.seed,
        "z": list(env.z) if isinstance(env.z, tuple) else [env.z],
        "z_index": env.task.answers.index(env.z),
        "length": env.step_index,
        "evidence_steps": env.evidence_steps,
        "decision_steps": [step for step in env.decisions if step < env.step_index],
    }
    # `length` is that of the episode; the number of seasonings is that of z
    dials = {name: number for name, number in env.difficulty.items() if name not in facts}
    return {
        **facts,
        **dials,
        "manipulation": result.manipulation,
        "decision": result.decision,
        "reason": result.reason,
    }
