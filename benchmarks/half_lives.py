"""Measure how long memories last while nothing happens: half-lives of heads on still inputs.

    python -m benchmarks.half_lives --out docs/results/half-lives.json
    python -m benchmarks.half_lives --policies camo-small --tasks shell-game

The clock Delta_t of a head follows the input. While the input stands still, so does the clock, and
the half-life of the head is ln 2 / (Delta |A|). Fresh layers get one random input of unit variance
in each stream. Trained policies play a task up to the decision and then see that moment for as long
as it takes the convolutions to settle.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
import tyro
from torch import Tensor

from benchmarks import with_arguments
from benchmarks.which_memory import Emptied
from chameleon_policy import ChameleonPolicy, MemoryState, Observation, SSMConfig, preset
from chameleon_policy.evaluate.evaluation import FIRST_SEED, evaluate, evaluation_seeds
from chameleon_policy.evaluate.loading import load_for_evaluation
from chameleon_policy.policy.ssm import SelectiveSSM
from chameleon_policy.provenance import write_result

COMMAND = "python -m benchmarks.half_lives"
SEEDS = tuple(range(8))
STREAMS = 400
STILL_STEPS = 8
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
LAYERS = ("slow", "fast")


def main(
    out: Path = Path("runs/half-lives.json"),
    policies: tuple[str, ...] = (),
    tasks: tuple[Literal["clean-plate", "shell-game", "seasonings"], ...] = ("shell-game",),
    episodes: int = 16,
) -> None:
    """Measure, print, and write the result.

    Args:
        out: JSON file to write.
        policies: Trained policies to measure, in addition to untrained ones of every preset.
        tasks: Tasks that they play.
        episodes: Held-out episodes of each task.
    """
    seeds = evaluation_seeds(FIRST_SEED, episodes)
    rows = [
        fresh(name, layer, limited)
        for name in ("paper", "small", "nano")
        for layer, limited in _kinds()
    ]
    try:
        rows += [
            row for source in policies for task in tasks for row in trained(source, task, seeds)
        ]
    except (ValueError, FileNotFoundError) as error:
        raise SystemExit(str(error)) from None
    for row in rows:
        quantiles = " / ".join(f"{value:.3g}" for value in row["quantiles"])
        print(
            f"{row['policy']}, {row['layer']}, limit {row['limit']}: {quantiles}; "
            f"above 64 steps {row['above_64']:.0%}"
        )
    command = with_arguments(COMMAND)
    write_result(
        out,
        {"quantiles": QUANTILES, "rows": rows},
        command=command,
        seeds=[*SEEDS, *(seeds if policies else ())],
    )
    print(f"Written to {out}")


def _kinds() -> list[tuple[str, bool]]:
    return [("slow", False), ("fast", False), ("fast", True)]


def fresh(name: str, layer: str, limited: bool) -> dict[str, Any]:
    """Measure layers of an untrained preset on constant inputs."""
    config = preset(name)
    ssm: SSMConfig = getattr(config, layer)
    ssm = ssm if limited else dataclasses.replace(ssm, half_life_limit=None)
    found = []
    for seed in SEEDS:
        torch.manual_seed(seed)
        module = SelectiveSSM(config.width, ssm)
        found.append(half_lives(module, module.in_projection(torch.randn(STREAMS, config.width))))
    return _row(f"{name}, untrained", layer, ssm, torch.cat(found))


def trained(source: str, task: str, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Measure the layers of a trained policy at the decision of a task."""
    policy, settings = load_for_evaluation(source, task, "auto")
    if not isinstance(policy, ChameleonPolicy):
        raise ValueError(
            f"{source} is {policy.method}; only Chameleon and its ablations have two layers"
        )
    held = Held(policy)
    evaluate(
        held,
        settings,
        seeds,
        steps=8,
        parallel=len(seeds),
        workers=2,
        at_decision=held.at_decision,
    )
    ssm = {"slow": policy.config.slow, "fast": policy.config.fast}
    rows = [
        _row(f"{source}, {task}", layer, ssm[layer], torch.cat(held.found[layer]))
        for layer in LAYERS
    ]
    return [{**row, "episodes": len(seeds)} for row in rows]


class Held(Emptied):
    """A policy that plays as usual, with the half-lives read from its memory at every decision."""

    def __init__(self, policy: ChameleonPolicy) -> None:
        super().__init__(policy, ())
        self.found: dict[str, list[Tensor]] = {layer: [] for layer in LAYERS}
        self._due: list[int] = []

    def at_decision(self, state: MemoryState, robots: Sequence[int]) -> MemoryState:
        """Note that these robots are about to decide."""
        self._due = list(robots)
        return super().at_decision(state, robots)

    def observe(self, observation: Observation, state: MemoryState) -> MemoryState:
        """Observe; where a decision is due, also measure."""
        if self._due:
            due, self._due = self._due, []
            seen, held = observation.map(lambda tensor: tensor[due]), state[due]
            if observation.instruction is not None:
                seen = dataclasses.replace(seen, instruction=observation.instruction[due])
            for _ in range(STILL_STEPS):
                held = self._policy.observe(seen, held)
            self._measure(seen, held)
        return super().observe(observation, state)

    def _measure(self, seen: Observation, held: MemoryState) -> None:
        handles = [
            module.in_projection.register_forward_hook(
                lambda _, __, output, m=module, n=name: self.found[n].append(
                    half_lives(m, output).flatten(0, -2)
                )
            )
            for layer in self._policy.layers
            for name, module in (
                ("slow", layer.propagation.slow),
                ("fast", layer.consolidation.fast),
            )
        ]
        self._policy.observe(seen, held)
        for handle in handles:
            handle.remove()


@torch.no_grad()
def half_lives(module: SelectiveSSM, projected: Tensor) -> Tensor:
    """Compute ln 2 / (Delta |A|) in steps (... heads) from projected inputs (... channels)."""
    rates = module._rates(projected[..., -module.heads :])
    return math.log(2) / (rates * module.log_decay.exp())


def _row(policy: str, layer: str, ssm: SSMConfig, found: Tensor) -> dict[str, Any]:
    values = found.flatten().double()
    values = values[
        torch.randperm(len(values), generator=torch.Generator().manual_seed(0))[:100_000]
    ]
    quantiles = torch.quantile(values, torch.tensor(QUANTILES, dtype=torch.float64)).tolist()
    return {
        "policy": policy,
        "layer": layer,
        "set_to": list(ssm.half_life),
        "limit": ssm.half_life_limit,
        "quantiles": [round(value, 2) for value in quantiles],
        "longest": round(found.max().item(), 2),
        "above_64": (found > 64).double().mean().item(),
        "above_300": (found > 300).double().mean().item(),
    }


if __name__ == "__main__":
    tyro.cli(main, prog=COMMAND)
