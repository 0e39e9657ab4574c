"""One demonstration: an expert plays an episode, and what it saw and did is kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from chameleon_policy.camo.env import CamoEnv
from chameleon_policy.camo.experts import make_expert
from chameleon_policy.camo.scoring import Score
from chameleon_policy.camo.tasks import Answer


@dataclass(frozen=True)
class Demonstration:
    """Observations and labels of an episode, step by step, and what the simulator knows about
    it.
    """

    observations: list[dict[str, Any]]
    actions: npt.NDArray[np.float32]
    """Clean labels (T, 10); what was executed carries noise."""
    score: Score
    annotation: dict[str, Any]
    """Seed, z, t_d and the other facts of the table of episodes."""


def demonstrate(
    env: CamoEnv,
    seed: int,
    z: Answer | None = None,
    *,
    noise: float = 1.0,
    wrong_choice: Answer | None = None,
) -> Demonstration:
    """Play one episode with the task's expert."""
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
    """The facts of the episode that an environment is at the end of."""
    answers = env.task.answers
    result = env.score()
    return {
        "seed": env.seed,
        "z": list(env.z) if isinstance(env.z, tuple) else [env.z],
        "z_index": answers.index(env.z),
        "length": env.step_index,
        "evidence_steps": env.evidence_steps,
        "decision_steps": [step for step in env.decisions if step < env.step_index],
        **env.difficulty,
        "manipulation": result.manipulation,
        "decision": result.decision,
        "reason": result.reason,
    }
