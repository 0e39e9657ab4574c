"""Scores of a policy on a task, with intervals and reasons, also by answer and by difficulty."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from chameleon_policy.console import check_counts
from chameleon_policy.evaluate.pool import EnvPool
from chameleon_policy.evaluate.rollouts import AtDecision, Policy, Rollout, roll_out
from chameleon_policy.policy import Features, InstructionEncoder
from chameleon_policy.seeds import EVALUATION_SEEDS, refuse_training_seeds
from chameleon_policy.suite import EnvironmentSettings, ScoreSummary, suite_named

FIRST_SEED = EVALUATION_SEEDS.start


@dataclass(frozen=True)
class Evaluation:
    """Rollouts of one policy on one task."""

    settings: EnvironmentSettings
    rollouts: list[Rollout]

    @property
    def summary(self) -> ScoreSummary:
        """Rates and reasons over all episodes."""
        return self._summary(self.rollouts)

    def by_answer(self) -> dict[str, ScoreSummary]:
        """Summarise the episodes of every z; empty where there is none."""
        if self.rollouts[0].played.z is None:
            return {}
        return self._grouped(lambda rollout: str(rollout.played.z))

    def by_difficulty(self) -> dict[str, dict[str, ScoreSummary]]:
        """Summarise the episodes of every value of every dial: swaps, steps of retention ..."""

        def values_of(dial: str) -> Callable[[Rollout], int]:
            return lambda rollout: rollout.played.difficulty[dial]

        return {dial: self._grouped(values_of(dial)) for dial in self.rollouts[0].played.difficulty}

    def as_dict(self) -> dict[str, Any]:
        """Return the evaluation in JSON's types."""
        results = [rollout.played for rollout in self.rollouts]
        lengths = [result.length for result in results]
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
                    "seed": result.seed,
                    "z": result.z,
                    **asdict(result.score),
                    **result.difficulty,
                    "control_steps": result.length,
                }
                for result in results
            ],
        }

    def _grouped(self, key: Callable[[Rollout], Any]) -> dict[str, ScoreSummary]:
        values = sorted({key(rollout) for rollout in self.rollouts})
        return {
            str(value): self._summary([each for each in self.rollouts if key(each) == value])
            for value in values
        }

    def _summary(self, rollouts: Sequence[Rollout]) -> ScoreSummary:
        task = suite_named(self.settings.suite).task(self.settings.task)
        return task.summarise([rollout.played for rollout in rollouts])


def evaluate(
    policy: Policy,
    settings: EnvironmentSettings,
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
    """Play an episode for every seed.

    Training seeds are an error unless `training_seeds` is set.
    """
    if not seeds:
        raise ValueError("expected at least one episode, got none")
    if not training_seeds:
        refuse_training_seeds(seeds)
    with EnvPool(settings, parallel, min(workers, len(seeds))) as pool:
        instruction = suite_named(settings.suite).task(settings.task).instruction
        rollouts = roll_out(
            policy,
            pool,
            seeds,
            steps=steps,
            executed=executed,
            instruction=embed_instruction(policy.features, instruction),
            at_decision=at_decision,
            progress=progress,
        )
    return Evaluation(settings, rollouts)


def embed_instruction(features: Features, instruction: str) -> Any:
    """Return the embedded instruction (1, D) for a policy with language, None for one without."""
    if features.language is None:
        return None
    return InstructionEncoder.of(features.language).embed([instruction])


def evaluation_seeds(first: int, episodes: int) -> list[int]:
    """Return consecutive seeds from `first` on; ValueError for seeds of demonstrations."""
    check_counts(episodes=episodes)
    seeds = list(range(first, first + episodes))
    refuse_training_seeds(seeds)
    return seeds
