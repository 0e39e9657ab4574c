"""Measure how many Euler steps a chunk of actions needs.

    make demo && python -m benchmarks.euler_steps --run runs/demo/chameleon --data runs/demo/data

Any run of `chameleon train` will do. Its actions on recorded demonstrations are compared with those
of 50 steps from the same noise, in normalised units (1 is half the range of a dimension), and it is
evaluated in closed loop.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import tyro
from rich.console import Console
from rich.table import Table

from benchmarks import with_arguments
from benchmarks.performance.sizes import EULER_STEPS
from chameleon_policy import ChameleonPolicy, Observation
from chameleon_policy.data import load_episodes, open_episodes
from chameleon_policy.evaluate.evaluation import FIRST_SEED, evaluate, evaluation_seeds
from chameleon_policy.evaluate.loading import load_for_evaluation
from chameleon_policy.provenance import write_result

COMMAND = "python -m benchmarks.euler_steps"
SEED = 0
LATER_SEEDS = FIRST_SEED + 1000
"""First evaluation seed; the scores of the demo use others."""
EVERY = 4
"""Control steps between two chunks that are compared."""


@torch.no_grad()
def differences(policy: ChameleonPolicy, data: Path, episodes: int) -> dict[int, float]:
    """Return the mean absolute difference to chunks of 50 steps from the same noise."""
    generator = torch.Generator().manual_seed(SEED)
    sums, count = dict.fromkeys(EULER_STEPS, 0.0), 0
    shape = (1, policy.features.horizon, policy.features.action)
    for episode in load_episodes(open_episodes(data), workers=1)[:episodes]:
        state = policy.initial_state()
        for t in range(episode.length):
            objects = None if episode.objects is None else episode.objects[t]
            images = {name: frames[t] for name, frames in episode.images.items()}
            state = policy.observe(
                Observation.single(proprioception=episode.state[t], images=images, objects=objects),
                state,
            )
            if t % EVERY == 0:
                noise = torch.randn(shape, generator=generator)
                chunks = {
                    n: policy.normalize_action(policy.act(state, steps=n, source=noise))
                    for n in EULER_STEPS
                }
                for n, chunk in chunks.items():
                    sums[n] += (chunk - chunks[50]).abs().mean().item()
                count += 1
    return {n: total / count for n, total in sums.items()}


def main(
    run: Path, data: Path, task: str = "clean-plate", episodes: int = 36, out: Path | None = None
) -> None:
    """Measure, print, and write the result.

    Args:
        run: Folder of a training run.
        data: Demonstrations to compare actions on.
        task: Camo task to play.
        episodes: Episodes to play with each number of steps.
        out: File to write; runs/euler-steps.json by default.
    """
    policy, settings = load_for_evaluation(run, task, "cpu")
    apart = differences(policy, data, 8)
    seeds = evaluation_seeds(LATER_SEEDS, episodes)
    rows: dict[str, Any] = {}
    for steps in EULER_STEPS:
        torch.manual_seed(SEED)
        rows[str(steps)] = {
            "difference_to_50_steps": apart[steps],
            **evaluate(policy, settings, seeds, steps=steps).summary.as_dict(),
        }
    table = Table(title=f"{run}: {episodes} episodes each")
    for column in ("Euler steps", "difference to 50", "MSR", "DSR", "SR"):
        table.add_column(column, justify="right")
    for number, row in rows.items():
        values = [row[name]["value"] for name in ("msr", "dsr", "sr")]
        scores = ["-" if value is None else f"{value:.0%}" for value in values]
        table.add_row(number, f"{row['difference_to_50_steps']:.4f}", *scores)
    Console().print(table)
    command = with_arguments(COMMAND).split(" --out")[0]
    write_result(
        out or Path("runs/euler-steps.json"),
        {"task": task, "steps": rows},
        command=command,
        seeds=seeds,
    )


if __name__ == "__main__":
    tyro.cli(main, prog=COMMAND)
