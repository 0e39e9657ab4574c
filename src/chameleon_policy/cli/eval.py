"""Score a policy in closed loop on held-out episodes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from chameleon_policy.cli.options import DEFAULT_DIALS, POLICY, TASK, UNSET, FlatDials, typed
from chameleon_policy.console import (
    Terminal,
    check_counts,
    check_writable,
    counted,
    progress_bar,
)
from chameleon_policy.device import Device, gpu_memory
from chameleon_policy.evaluate.evaluation import FIRST_SEED, Evaluation, evaluate, evaluation_seeds
from chameleon_policy.evaluate.loading import (
    check_executed,
    load_for_evaluation,
    sampling_steps_of,
    training_of,
)
from chameleon_policy.evaluate.videos import save_failures
from chameleon_policy.provenance import write_result
from chameleon_policy.report.tables import evaluation_table
from chameleon_policy.suite import find_task


def main(
    run: Annotated[tyro.conf.Positional[Path], POLICY],
    task: Annotated[str, TASK],
    episodes: int = 36,
    steps: Annotated[int | None, UNSET] = None,
    executed: Annotated[int | None, UNSET] = None,
    json_file: Annotated[Path | None, tyro.conf.arg(name="json"), UNSET] = None,
    videos: Annotated[Path | None, UNSET] = None,
    first_seed: int = FIRST_SEED,
    parallel: int = 36,
    workers: int = 2,
    device: Device = "auto",
    dials: FlatDials = DEFAULT_DIALS,
) -> None:
    """Score a policy in closed loop on held-out episodes.

    Args:
        run: Folder of a run or of a saved policy; or camo-small, which comes with the package,
            or hf:owner/name on the Hugging Face hub;
            or oracle or guess, experts that know the answer, or guess it.
        task: clean-plate, shell-game, seasonings or pantry.
        episodes: Episodes, one per seed.
        steps: Sampling steps of a chunk (default: the policy's own: 50, or 8 for camo-small).
        executed: Actions of a chunk to carry out before the next one (default: half of them, or
            one for ACT).
        json_file: File for the scores and every episode (default: none is written).
        videos: Folder for videos of the failures (default: none are made).
        first_seed: Seed of the first episode; training seeds are refused.
        parallel: Episodes at the same time.
        workers: Processes for the environments; 0: in this process.
        device: Where the policy computes; auto: on a GPU if there is one.
        dials: Appearance and difficulty (default: the benchmark's).
    """
    seeds = evaluation_seeds(first_seed, episodes)
    given = {"steps": steps, "executed": executed}
    check_counts(
        parallel=parallel, **{name: count for name, count in given.items() if count is not None}
    )
    find_task(task)  # or ValueError
    check_executed(run, executed)
    if json_file is not None:
        check_writable("json", json_file)
    if videos is not None and videos.exists() and not videos.is_dir():
        raise ValueError(f"--videos must name a folder, and {videos} is a file")
    policy, settings = load_for_evaluation(run, task, device, **dials.settings)
    with progress_bar(f"evaluating {run}", episodes) as advance, gpu_memory("--parallel"):
        evaluation = evaluate(
            policy,
            settings,
            seeds,
            steps=steps,
            executed=executed,
            parallel=parallel,
            workers=workers,
            progress=advance,
        )
    Terminal().print(evaluation_table(evaluation, str(run)))
    for reason, count in evaluation.summary.reasons.items():
        print(f"{count:4d}  {reason}")
    if json_file is not None:
        result = {
            "policy": str(run),
            "training": training_of(run),
            "steps": steps or sampling_steps_of(policy),
            "executed": executed,
            **evaluation.as_dict(),
        }
        write_result(json_file, result, command=typed(), seeds=seeds)
        print(f"Scores: {json_file}")
    if videos is not None:
        _draw_failures(evaluation, videos)


def _draw_failures(evaluation: Evaluation, folder: Path) -> None:
    failures = sum(not rollout.played.score.success for rollout in evaluation.rollouts)
    with progress_bar("drawing the failures", failures) as advance:
        save_failures(evaluation.settings, evaluation.rollouts, folder, progress=advance)
    print(f"{counted(failures, 'failure')} in {folder}" if failures else "No failures, no videos")
