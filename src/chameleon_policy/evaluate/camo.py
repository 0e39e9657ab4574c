"""Scores of a policy on a Camo task, with intervals, reasons, and broken down by answer and by
difficulty.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from chameleon_policy.camo import Summary, summarise, task_named
from chameleon_policy.camo.seeds import EVALUATION_SEEDS, refuse_training_seeds
from chameleon_policy.evaluate.pool import EnvPool
from chameleon_policy.evaluate.rollouts import AtDecision, Policy, Rollout, roll_out
from chameleon_policy.evaluate.settings import CamoSettings
from chameleon_policy.policy import Features, InstructionEncoder


@dataclass(frozen=True)
class Evaluation:
    """Rollouts of one policy on one task."""

    settings: CamoSettings
    rollouts: list[Rollout]

    @property
    def summary(self) -> Summary:
        """MSR, DSR, SR and reasons over all episodes."""
        return self._summary(self.rollouts)

    def by_answer(self) -> dict[str, Summary]:
        """The same for every z."""
        return self._grouped(lambda rollout: str(rollout.played.z))

    def by_difficulty(self) -> dict[str, dict[str, Summary]]:
        """Dial -> its value -> the same: swaps, hovers, steps of retention."""
        dials = self.rollouts[0].played.difficulty
        return {dial: self._grouped(partial(_dial, dial)) for dial in dials}

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        lengths = [rollout.played.length for rollout in self.rollouts]
        return {
            "task": self.settings.task,
            "environment": self.settings.as_dict(),
            "episodes": len(self.rollouts),
            **self.summary.as_dict(),
            "by_answer": {z: summary.as_dict() for z, summary in self.by_answer().items()},
            "by_difficulty": {
                dial: {value: summary.as_dict() for value, summary in values.items()}
                for dial, values in self.by_difficulty().items()
            },
            "control_steps": {
                "shortest": min(lengths),
                "longest": max(lengths),
                "all": sum(lengths),
            },
            "rollouts": [
                {
                    "seed": played.seed,
                    "z": played.z,
                    **asdict(played.score),
                    **played.difficulty,
                    "control_steps": played.length,
                }
                for played in (rollout.played for rollout in self.rollouts)
            ],
        }

    def _grouped(self, key: Callable[[Rollout], Any]) -> dict[str, Summary]:
        values = sorted({key(rollout) for rollout in self.rollouts})
        return {
            str(value): self._summary([each for each in self.rollouts if key(each) == value])
            for value in values
        }

    def _summary(self, rollouts: Sequence[Rollout]) -> Summary:
        task = task_named(self.settings.task)()
        return summarise([rollout.played.score for rollout in rollouts], task.chance)


def evaluate(
    policy: Policy,
    settings: CamoSettings,
    seeds: Sequence[int],
    *,
    steps: int | None = None,
    executed: int | None = None,
    parallel: int = 36,
    workers: int = 2,
    training_seeds: bool = False,
    at_decision: AtDecision = lambda state, slots: state,
    progress: Callable[[int], object] = lambda done: None,
) -> Evaluation:
    """Play an episode for every seed. Training seeds are refused, unless it is said that they are
    meant.
    """
    if not seeds:
        raise ValueError("expected at least one episode, got none")
    if not training_seeds:
        refuse_training_seeds(seeds)
    with EnvPool(settings, parallel, min(workers, len(seeds))) as pool:
        instruction = embed_instruction(policy.features, settings.task)
        rollouts = roll_out(
            policy,
            pool,
            seeds,
            steps=steps,
            executed=executed,
            instruction=instruction,
            at_decision=at_decision,
            progress=progress,
        )
    return Evaluation(settings, rollouts)


def embed_instruction(features: Features, task: str) -> Any:
    """The task's instruction for a policy with language, None for one without."""
    if features.language is None:
        return None
    return InstructionEncoder(features.language.encoder).embed([task_named(task).instruction])


def evaluation_seeds(first: int, episodes: int) -> list[int]:
    """Consecutive seeds from `first` on, all in the range that no demonstration is made from."""
    if episodes < 1:
        raise ValueError(f"--episodes must be at least 1, got {episodes}")
    seeds = list(range(first, first + episodes))
    refuse_training_seeds(seeds)
    return seeds


def _dial(name: str, rollout: Rollout) -> int:
    return rollout.played.difficulty[name]


FIRST_SEED = EVALUATION_SEEDS.start
