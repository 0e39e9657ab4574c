"""Commands that score policies: demo, eval, reproduce, bench."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console

from chameleon_policy.cli.dials import UNTURNED, FlatDials
from chameleon_policy.cli.shared import Preset, Where, extra, typed
from chameleon_policy.console import progress_bar


def demo(
    out: Path = Path("runs/demo"),
    demonstrations: int | None = None,
    minutes: float | None = None,
    twin_minutes: float | None = None,
    episodes: int | None = None,
    shipped_episodes: int | None = None,
) -> None:
    """Memory against chance in seven minutes: record, train a policy and its memoryless twin, score both, write a page.

    Args:
        out: Folder for everything that is made; what is there already is kept.
        demonstrations: Expert episodes to learn from.
        minutes: Training of Chameleon.
        twin_minutes: Training of the memoryless twin.
        episodes: Held-out episodes for each of the two.
        shipped_episodes: Held-out episodes of each task for the policy that comes with the package.
    """
    with extra("camo,train"):
        from chameleon_policy.experiments.demo import DemoConfig, run_demo

    given = {
        "demonstrations": demonstrations, "minutes": minutes, "twin_minutes": twin_minutes, "episodes": episodes,
        "shipped_episodes": shipped_episodes,
    }  # fmt: skip
    config = DemoConfig(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]
    page = run_demo(config, out, progress_bar, Console(), command=typed())
    print(f"Look at it in a browser: {page.resolve().as_uri()}")


def evaluate(
    run: tyro.conf.Positional[Path],
    task: str,
    episodes: int = 36,
    steps: int | None = None,
    executed: int | None = None,
    json_file: Annotated[Path | None, tyro.conf.arg(name="json")] = None,
    videos: Path | None = None,
    first_seed: int = 1_000_000_000,
    parallel: int = 36,
    workers: int = 2,
    device: Where = "auto",
    dials: FlatDials = UNTURNED,
) -> None:
    """Score a policy in closed loop on episodes of Camo that no demonstration was made from.

    Args:
        run: Folder of a run or of a saved policy, or camo-small, which comes with the package; or oracle, or guess: the
            experts, with and without knowing the answer.
        task: clean-plate, shell-game or seasonings.
        episodes: Episodes, one per seed.
        steps: Sampling steps of a chunk (default: the policy's own: 50, or 8 for camo-small).
        executed: Actions of a chunk to carry out before the next one (default: half of them, or one for ACT).
        json_file: File for the scores and every episode.
        videos: Folder for videos of the failures.
        first_seed: Seed of the first episode; training seeds are refused.
        parallel: Episodes at the same time.
        workers: Processes for the environments; 0: none but this one.
        device: Where the policy computes (default: a GPU if there is one).
        dials: Looks and difficulty (default: the benchmark's).
    """
    with extra("camo"):
        from chameleon_policy.evaluate import camo
        from chameleon_policy.evaluate.loading import load_for_evaluation, sampling_steps_of, training_of
        from chameleon_policy.evaluate.videos import save_failures
        from chameleon_policy.provenance import write_result
        from chameleon_policy.report.evaluation_table import evaluation_table

    seeds = camo.evaluation_seeds(first_seed, episodes)
    if json_file is not None and json_file.is_dir():
        raise ValueError(f"--json must name a file, and {json_file} is a folder")
    if videos is not None and videos.exists() and not videos.is_dir():
        raise ValueError(f"--videos must name a folder, and {videos} is a file")
    policy, settings = load_for_evaluation(
        run, task, device, nuisance=dials.nuisance, retention_steps=dials.retention, difficulty=dials.difficulty
    )
    with progress_bar(f"evaluating {run}", episodes) as advance:
        evaluation = camo.evaluate(
            policy, settings, seeds, steps=steps, executed=executed, parallel=parallel, workers=workers, progress=advance
        )
    Console().print(evaluation_table(evaluation, str(run)))
    for reason, count in evaluation.summary.reasons.items():
        print(f"{count:4d}  {reason}")
    if json_file is not None:
        result = {
            "policy": str(run), "training": training_of(run), "steps": steps or sampling_steps_of(policy),
            "executed": executed, **evaluation.as_dict(),
        }  # fmt: skip
        write_result(json_file, result, command=typed(), seeds=seeds)
        print(f"Scores: {json_file}")
    if videos is not None:
        failures = episodes - round(evaluation.summary.sr.value * episodes)
        with progress_bar("drawing the failures", failures) as advance:
            save_failures(settings, evaluation.rollouts, videos, progress=advance)
        print(f"{failures} failures in {videos}")


def reproduce(
    benchmark: tyro.conf.Positional[Literal["camo"]],
    task: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = (),
    out: Path | None = None,
    minutes: float = 20.0,
    demonstrations: int = 120,
    preset: Preset = "small",
    image_size: int = 128,
    episodes: int = 200,
    seed: int = 0,
    workers: int = os.cpu_count() or 1,
    device: Where = "auto",
) -> None:
    """From nothing to scores: record demonstrations, train one policy by the recipe, score held-out episodes, compare.

    Args:
        benchmark: What to reproduce.
        task: clean-plate, shell-game or seasonings; give it again for another, which the same policy learns (default: all
            three).
        out: Folder for everything that is made; what is there already is kept (default: runs/reproduce-camo, or
            runs/reproduce-<tasks>).
        minutes: Training.
        demonstrations: Expert episodes of each task to learn from; the paper has 120.
        preset: Size of the policy.
        image_size: Height and width of the pictures.
        episodes: Held-out episodes of each task.
        seed: Of demonstrations and training; held-out episodes stay the same.
        workers: Processes that record and evaluate.
        device: Where to train (default: a GPU if there is one).
    """
    with extra("camo,train"):
        from chameleon_policy.experiments.reproduce import Reproduction
        from chameleon_policy.experiments.reproduce import reproduce as run_reproduction

    tasks = {"tasks": task} if task else {}
    config = Reproduction(
        **tasks, minutes=minutes, demonstrations=demonstrations, preset=preset, image_size=image_size, episodes=episodes,
        seed=seed,
    )  # fmt: skip
    folder = out or Path("runs") / "-".join(("reproduce", *(task or ("camo",))))
    command = typed()
    run_reproduction(config, folder, progress_bar, Console(), command=command, device=device, workers=workers)
    print(f"Scores of every episode: {folder}/scores.json. Policy: {folder}/policy")


def bench(
    benchmark: tyro.conf.Positional[Literal["camo"]],
    method: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = (),
    task: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = (),
    seed: Annotated[tuple[int, ...], tyro.conf.UseAppendAction] = (),
    preset: Preset = "small",
    steps: int = 4000,
    demonstrations: int = 120,
    image_size: int = 128,
    observation: Literal["rgb", "state"] = "rgb",
    episodes: int = 100,
    tell_answer: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    side_by_side: int = 2,
    workers: int = os.cpu_count() or 1,
    device: Where = "auto",
    out: Path = Path("runs/bench-camo"),
    results: Path = Path("docs/results/camo-table.json"),
    table_only: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
) -> None:
    """Compare methods: train and score each alike, several at a time, and draw the table; the same command goes on.

    Args:
        benchmark: What to compare on.
        method: chameleon, no-memory, act ... (docs/baselines.md); give it again for another (default: all).
        task: clean-plate, shell-game or seasonings; give it again for another, which the same policy learns (default: all
            three).
        seed: Of a training and its demonstrations; give it again for another training (default: 0).
        preset: Size of the policies.
        steps: Optimizer steps of each training.
        demonstrations: Expert episodes of each task to learn from; the paper has 120.
        image_size: Height and width of the pictures.
        observation: Pictures of both cameras; or object slots, from which every task is learned by a policy of its own.
        episodes: Held-out episodes of each task.
        tell_answer: Give every policy the answer, to see what it fails at besides remembering.
        side_by_side: Trainings at the same time.
        workers: Processes that record and evaluate.
        device: Where to train and to play (default: a GPU if there is one).
        out: Folder for demonstrations and runs; what is there already is kept.
        results: File for the scores: a row for each policy and task, added when it is there. The tables (.md, .tex, .html)
            lie beside it.
        table_only: Draw the tables from the results that are there, and run nothing.
    """
    with extra("camo,train"):
        from chameleon_policy.experiments.bench.plan import Bench
        from chameleon_policy.experiments.bench.rows import Results
        from chameleon_policy.experiments.bench.run import Workshop, run_bench
        from chameleon_policy.report.comparison.files import draw_tables

    file, console = Results(results), Console()
    if table_only:
        draw_tables(results, file.rows, console)
        return
    given: dict[str, Any] = {"methods": method, "tasks": task, "seeds": seed}
    config = Bench(
        **{name: values for name, values in given.items() if values}, preset=preset, steps=steps, image_size=image_size,
        demonstrations=demonstrations, observation=observation, episodes=episodes, tell_answer=tell_answer,
    )  # fmt: skip
    command = typed()
    workshop = Workshop(
        out=out, results=file, command=command, device=device, side_by_side=side_by_side, workers=workers
    )  # fmt: skip
    try:
        run_bench(config, workshop, progress_bar, console)
    finally:  # what is there is drawn, whatever became of the rest
        if file.rows:
            draw_tables(results, file.rows, console)
