"""Compare trainings that find waiting in the actions with trainings that are told where it ends.

    python -m benchmarks.annotated_decisions --out docs/results/annotated-decisions.json

The recipe `camo-state` lets time steps of mere waiting carry the action loss less often. Which ones
these are, the actions tell, or, with `--annotated-decisions`, the recording's annotations. Both are
trained from three seeds at the nano size on the same demonstrations, on a CPU.
"""

from __future__ import annotations

import itertools
import multiprocessing
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import tyro

from benchmarks import with_arguments
from benchmarks.brief_working_state import DATA, TASK, train_and_score
from chameleon_policy.camo.recording import Recording
from chameleon_policy.console import progress_bar
from chameleon_policy.evaluate.evaluation import FIRST_SEED, evaluation_seeds
from chameleon_policy.provenance import write_rows
from chameleon_policy.rates import Rate, interval
from chameleon_policy.recorder import record_once

COMMAND = "python -m benchmarks.annotated_decisions"


def main(
    out: Path,
    steps: int = 1000,
    seeds: tuple[int, ...] = (0, 1, 2),
    episodes: int = 72,
    side_by_side: int = 2,
    runs: Path = Path("runs/annotated-decisions"),
) -> None:
    """Train, score, print, and write the result.

    Args:
        out: JSON file to write.
        steps: Optimizer steps of each training.
        seeds: Training seeds.
        episodes: Held-out episodes of each evaluation.
        side_by_side: Trainings at the same time, one core each.
        runs: Folder for the trainings; what is trained there is not trained again.
    """
    record_once(Recording(task=TASK, observation="state"), DATA, progress_bar, side_by_side)
    played = evaluation_seeds(FIRST_SEED, episodes)
    rows: list[dict[str, Any]] = []
    with ProcessPoolExecutor(side_by_side, mp_context=multiprocessing.get_context("spawn")) as pool:
        trainings = [
            pool.submit(
                train_and_score,
                "chameleon",
                {"steps": steps, "seed": seed, "annotated_decisions": annotated},
                played,
                runs / f"{'annotated' if annotated else 'found'}-seed{seed}",
            )
            for seed, annotated in itertools.product(seeds, (False, True))
        ]
        for future in as_completed(trainings):
            rows.append(future.result())
            write_rows(out, rows, with_arguments(COMMAND), played)
            row = rows[-1]
            told = "annotated" if row["annotated_decisions"] else "found in the actions"
            rates = (
                f"{name.upper()} {interval(Rate.from_dict(row[name]))}" for name in ("dsr", "sr")
            )
            print(f"{told}, seed {row['seed']}: {', '.join(rates)}", flush=True)


if __name__ == "__main__":
    tyro.cli(main, prog=COMMAND)
