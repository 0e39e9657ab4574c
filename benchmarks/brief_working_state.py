"""Train nano policies whose fast layer forgets, so that the working state cannot hold the answer.

    python -m benchmarks.brief_working_state --out docs/results/brief-working-state.json

Chameleon and the ablations of its memory are trained once more on object slots, with the recipe and
the demonstrations of `chameleon bench camo --observation state --preset nano --task clean-plate
--steps 1500`. One thing differs: the fast state-space layer (Eq. 10) meets an empty state at every
step. Only the slow layer, or its replacement in an ablation, can remember then.
"""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import torch
import tyro

from benchmarks import with_arguments
from chameleon_policy.baselines import METHODS
from chameleon_policy.baselines.brief import BriefPolicy
from chameleon_policy.baselines.constant_index import ConstantIndexPolicy
from chameleon_policy.baselines.similarity import SimilarityPolicy
from chameleon_policy.baselines.vanilla_mamba import VanillaMambaPolicy
from chameleon_policy.camo.recording import Recording
from chameleon_policy.console import progress_bar
from chameleon_policy.evaluate.evaluation import FIRST_SEED, evaluate, evaluation_seeds
from chameleon_policy.evaluate.loading import load_for_evaluation
from chameleon_policy.policy import ChameleonPolicy
from chameleon_policy.provenance import write_result
from chameleon_policy.rates import Rate, interval
from chameleon_policy.recorder import record_once
from chameleon_policy.report.comparison.outcomes import words
from chameleon_policy.train.recipes import RECIPES
from chameleon_policy.train.training import AlreadyTrainedError, train

COMMAND = "python -m benchmarks.brief_working_state"
TASK = "clean-plate"
DATA = Path("runs/bench-camo/data/state/seed0") / TASK


class Brief(BriefPolicy):
    """Chameleon in which only traces remember, and the control index asks them."""

    method: ClassVar[str] = "brief-chameleon"


class BriefSimilarity(Brief, SimilarityPolicy):
    """Similarity retrieval in which only the bank remembers."""

    method: ClassVar[str] = "brief-similarity"


class BriefVanillaMamba(Brief, VanillaMambaPolicy):
    """Vanilla Mamba in which only the pooled state remembers."""

    method: ClassVar[str] = "brief-vanilla-mamba"


class BriefConstantIndex(Brief, ConstantIndexPolicy):
    """Chameleon with a constant control index in which only traces remember."""

    method: ClassVar[str] = "brief-constant-index"


KINDS: dict[str, type[ChameleonPolicy]] = {
    kind.method: kind for kind in (Brief, BriefSimilarity, BriefVanillaMamba, BriefConstantIndex)
}


def main(
    out: Path,
    steps: int = 1500,
    episodes: int = 72,
    side_by_side: int = 2,
    runs: Path = Path("runs/brief"),
) -> None:
    """Train, score, print, and write the result.

    Args:
        out: JSON file to write.
        steps: Optimizer steps of each training.
        episodes: Held-out episodes of each evaluation.
        side_by_side: Trainings at the same time, one core each.
        runs: Folder for the trainings; what is trained there is not trained again.
    """
    record_once(Recording(task=TASK, observation="state"), DATA, progress_bar, side_by_side)
    seeds = evaluation_seeds(FIRST_SEED, episodes)
    rows: list[dict[str, Any]] = []
    with ProcessPoolExecutor(side_by_side, mp_context=multiprocessing.get_context("spawn")) as pool:
        for future in as_completed(
            [
                pool.submit(
                    train_and_score,
                    method,
                    {"steps": steps},
                    seeds,
                    runs / f"{method}-{steps}steps",
                )
                for method in KINDS
            ]
        ):
            rows.append(future.result())
            rates = (
                f"{name.upper()} {interval(Rate.from_dict(rows[-1][name]))}"
                for name in ("msr", "dsr", "sr")
            )
            print(f"{rows[-1]['method']}: {', '.join(rates)}", flush=True)
            write_result(
                out,
                {"rows": rows},
                command=with_arguments(COMMAND),
                seeds=seeds,
            )


def train_and_score(
    method: str, training: dict[str, Any], seeds: list[int], run: Path
) -> dict[str, Any]:
    """Train a policy on one core, with these settings, and return its row of scores."""
    torch.set_num_threads(1)
    METHODS.update(KINDS)  # so that the trainer and the loader know them, in this process
    config = RECIPES["camo-state"].run(
        data=(DATA,), training=training, method=method, preset="nano"
    )
    with suppress(AlreadyTrainedError):
        train(config, run, device="cpu", workers=1)
    policy, settings = load_for_evaluation(run, TASK, "cpu")
    evaluation = evaluate(policy, settings, seeds, steps=8, workers=0)
    played = [rollout.played for rollout in evaluation.rollouts]
    return {
        "method": method,
        "task": TASK,
        "preset": "nano",
        "observation": "state",
        **training,
        "episodes": len(seeds),
        **evaluation.summary.as_dict(),
        "answers": words(each.z for each in played),
        "choices": words(each.score.choice for each in played),
    }


if __name__ == "__main__":
    tyro.cli(main, prog=COMMAND)
