"""Measure which of its two memories a policy answers from, by emptying them at the decision.

    python -m benchmarks.which_memory runs/bench-camo/small/chameleon-4000steps-seed0 \\
        --task clean-plate --task shell-game --out docs/results/which-memory.json

A memory layer carries the traces of its tokens in a slow state-space layer (Eq. 6) and its working
state in a fast one (Eq. 10). At the moment at which the robot may act, one of them, or both, is
replaced by an empty one in all layers. A choice that is still right was in the part that is left. A
choice that is then wrong need not have been in the other part: no policy was trained with such a
hole in its memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
import tyro
from torch import Tensor

from benchmarks import with_arguments
from chameleon_policy.camo import task_named
from chameleon_policy.evaluate.evaluation import FIRST_SEED, evaluate, evaluation_seeds
from chameleon_policy.evaluate.loading import load_for_evaluation
from chameleon_policy.policy import ChameleonPolicy, Features, MemoryState, Observation
from chameleon_policy.provenance import write_result
from chameleon_policy.rates import interval
from chameleon_policy.report.comparison.outcomes import words

COMMAND = "python -m benchmarks.which_memory"
EMPTIED: dict[str, tuple[str, ...]] = {
    "nothing": (),
    "slow": ("slow",),
    "fast": ("fast",),
    "both": ("slow", "fast"),
}
"""Name of what is emptied -> fields of a `LayerState`."""


class Emptied:
    """A policy of Chameleon's family that loses parts of its memory when a decision is due."""

    temporal_ensemble = None

    def __init__(self, policy: ChameleonPolicy, parts: Sequence[str]) -> None:
        self._policy, self._parts = policy, parts
        self.features: Features = policy.features
        self.device: torch.device = policy.device
        self.executed = policy.executed

    def initial_state(self, batch_size: int = 1) -> MemoryState:
        """Call the policy."""
        return self._policy.initial_state(batch_size)

    def observe(self, observation: Observation, state: MemoryState) -> MemoryState:
        """Call the policy."""
        return self._policy.observe(observation, state)

    def act(self, state: MemoryState, *, steps: int | None, source: Tensor) -> Tensor:
        """Call the policy."""
        return self._policy.act(state, steps=steps, source=source)

    def at_decision(self, state: MemoryState, robots: Sequence[int]) -> MemoryState:
        """Return the memory with parts emptied for the robots that may act now."""
        empty = self.initial_state(len(robots))
        layers = tuple(
            replace(layer, **{part: getattr(nothing, part) for part in self._parts})
            for layer, nothing in zip(state[list(robots)].layers, empty.layers, strict=True)
        )
        return state.put(list(robots), replace(state[list(robots)], layers=layers))


def main(
    runs: tyro.conf.Positional[tuple[Path, ...]],
    out: Path,
    task: tyro.conf.UseAppendAction[tuple[Literal["clean-plate", "shell-game"], ...]],
    episodes: int = 72,
    steps: int = 8,
    parallel: int = 36,
    workers: int = 2,
    device: Literal["auto", "cpu", "cuda"] = "auto",
) -> None:
    """Measure, print, and write the result.

    Args:
        runs: Folders of runs or of saved policies: Chameleon or its ablations.
        out: JSON file to write.
        task: Tasks to play. They have one decision, at which the memory is emptied.
        episodes: Held-out episodes of each.
        steps: Euler steps of a chunk.
        parallel: Episodes at the same time.
        workers: Processes for the environments.
        device: Where the policies compute.
    """
    if not runs or not task:
        raise ValueError("expected at least one run and one --task")
    seeds = evaluation_seeds(FIRST_SEED, episodes)
    rollouts = {"steps": steps, "parallel": parallel, "workers": workers}
    rows: list[dict[str, Any]] = []
    for run, name in itertools.product(runs, task):
        for row in emptied_rows(run, name, seeds, device, rollouts):
            rows.append(row)
            # After every row, so that a study that is cut off leaves what it has.
            write_result(out, {"rows": rows}, command=with_arguments(COMMAND), seeds=seeds)
    chances = ", ".join(f"{task_named(name)().chance:.2f} ({name})" for name in task)
    print(f"Written: {out}; a guess has DSR {chances}")


def emptied_rows(
    run: Path, task: str, seeds: Sequence[int], device: str, rollouts: dict[str, int]
) -> Iterator[dict[str, Any]]:
    """Evaluate a policy with nothing, one memory, and both emptied; yield a row for each.

    `rollouts` are options of `evaluate`.
    """
    policy, settings = load_for_evaluation(run, task, device)
    if not isinstance(policy, ChameleonPolicy):
        raise ValueError(f"{run}: only Chameleon and its ablations have a slow and a fast memory")
    for emptied, parts in EMPTIED.items():
        playing = Emptied(policy, parts)
        evaluation = evaluate(playing, settings, seeds, at_decision=playing.at_decision, **rollouts)
        summary = evaluation.summary
        played = [rollout.played for rollout in evaluation.rollouts]
        print(
            f"{run} on {task}, {emptied} emptied: "
            f"MSR {interval(summary.msr)}, DSR {interval(summary.dsr)}",
            flush=True,
        )
        yield {
            "policy": str(run),
            "method": policy.method,
            "preset": policy.config.preset,
            "observation": settings.observation,
            "task": task,
            "emptied": emptied,
            "episodes": len(seeds),
            **summary.as_dict(),
            "answers": words(each.z for each in played),
            "choices": words(each.score.choice for each in played),
        }


if __name__ == "__main__":
    tyro.cli(main, prog=COMMAND)
