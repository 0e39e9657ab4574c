"""`chameleon demo`: a policy with memory and its twin without, scored on one page.

Both learn from the same demonstrations. Everything is made on a CPU, and nothing is downloaded.
Existing parts of the folder are kept. At the end the policy that comes with the package plays all
tasks of Camo from images.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chameleon_policy.camo import Summary, task_named
from chameleon_policy.console import check_counts
from chameleon_policy.evaluate.evaluation import FIRST_SEED, Evaluation, evaluation_seeds
from chameleon_policy.evaluate.rollouts import Rollout
from chameleon_policy.evaluate.videos import save_rollout
from chameleon_policy.experiments.pipeline import SCORES, Workspace, recipe_for
from chameleon_policy.policy.places import SHIPPED
from chameleon_policy.probes.theatre import answer_text
from chameleon_policy.report.demo_page import Contender, ShippedResult, demo_page
from chameleon_policy.report.pages import Clip
from chameleon_policy.report.tables import evaluation_table
from chameleon_policy.suite import PAPER_TASKS, find_task
from chameleon_policy.train.metrics import METRICS, read_metrics
from chameleon_policy.writing import whole_file

TASK = "clean-plate"
NAMES = {"chameleon": "Chameleon", "no-memory": "its memoryless twin"}
SAMPLING_STEPS = 4
SHIPPED_POLICY = SHIPPED / "camo-small"
CLIP_SIZE = 200


@dataclass(frozen=True, kw_only=True)
class DemoConfig:
    """Size of a demonstration; the defaults take about seven minutes on two cores."""

    demonstrations: int = 150
    """Expert episodes to learn from."""
    minutes: float = 3.4
    """Minutes of training of Chameleon."""
    twin_minutes: float = 1.2
    """Minutes of training of the memoryless twin."""
    episodes: int = 36
    """Held-out episodes for each of the two."""
    shipped_episodes: int = 2
    """Held-out episodes of each task for the policy that comes with the package."""
    seed: int = 0
    """Seed of demonstrations and training; held-out episodes stay the same."""

    def __post_init__(self) -> None:
        check_counts(episodes=self.episodes, shipped_episodes=self.shipped_episodes)


def run_demo(config: DemoConfig, workspace: Workspace) -> Path:
    """Record, train, evaluate and write the page; return its path."""
    started = time.perf_counter()
    out, console = workspace.out, workspace.console
    seeds = evaluation_seeds(FIRST_SEED, config.episodes)
    shipped_seeds = evaluation_seeds(FIRST_SEED, config.shipped_episodes)
    _record_and_train(config, workspace)
    console.rule("4. Closed loop")
    evaluations = {}
    for method, name in NAMES.items():
        evaluations[method] = workspace.play(out / method, TASK, seeds, steps=SAMPLING_STEPS)
        console.print(evaluation_table(evaluations[method], name))
    console.rule("5. The policy that comes with the package")
    shipped = {
        task: workspace.play(
            SHIPPED_POLICY, task, shipped_seeds, parallel=min(len(shipped_seeds), 36)
        )
        for task in PAPER_TASKS
    }
    shipped_results = _shipped_results(shipped, out / "clips" / SHIPPED_POLICY.name)
    for each in shipped_results:
        console.print(f"{each.task}: {each.right} of {each.episodes} right")
    metrics = {method: read_metrics(out / method / METRICS) for method in NAMES}
    contenders = [
        _contender(NAMES[method], evaluation, metrics[method], out / "clips" / method)
        for method, evaluation in evaluations.items()
    ]
    minutes = (time.perf_counter() - started) / 60
    result: dict[str, Any] = {
        method: {
            "training": {name: metrics[method][-1][name] for name in ("step", "seconds")},
            **evaluation.as_dict(),
        }
        for method, evaluation in evaluations.items()
    }
    result |= {"minutes": minutes, "demonstrations": config.demonstrations}
    result["shipped"] = {task: evaluation.as_dict() for task, evaluation in shipped.items()}
    workspace.write(result, seeds=max(seeds, shipped_seeds, key=len))
    page = out / "index.html"
    facts = _facts(config, minutes, out / SCORES)
    instruction = task_named(TASK).instruction
    with whole_file(page) as unfinished:
        unfinished.write_text(
            demo_page(TASK, instruction, contenders, facts, shipped_results), encoding="utf-8"
        )
    return page


def _record_and_train(config: DemoConfig, workspace: Workspace) -> None:
    out, console = workspace.out, workspace.console
    suite, task = find_task(TASK)
    console.rule("1. Demonstrations")
    recording = suite.recording(
        task, episodes=config.demonstrations, seed=config.seed, observation="state"
    )
    workspace.record({out / "data": recording})
    budgets = {"chameleon": config.minutes, "no-memory": config.twin_minutes}
    for number, (method, minutes) in enumerate(budgets.items(), start=2):
        console.rule(f"{number}. Training {NAMES[method]}")
        run = recipe_for(suite.name, "state").run(
            data=(out / "data",),
            training={"minutes": minutes, "seed": config.seed},
            method=method,
            preset="nano",
        )
        workspace.train(run, out / method)


def _facts(config: DemoConfig, minutes: float, scores: Path) -> list[str]:
    return [
        f"{config.demonstrations} expert demonstrations, state observations (five object slots), "
        "training seeds only.",
        f"`nano` from scratch: {config.minutes:g} minutes for Chameleon, "
        f"{config.twin_minutes:g} for the twin.",
        f"{config.episodes} rollouts each on held-out seeds, {SAMPLING_STEPS} Euler steps a chunk.",
        f"The policy that comes with the package: {config.shipped_episodes} rollouts of each task.",
        f"The command took {minutes:.1f} minutes. Every episode's score: `{scores}`.",
    ]


def _shipped_results(evaluations: dict[str, Evaluation], folder: Path) -> list[ShippedResult]:
    """Return for every task how many episodes succeeded, and a clip of the first one."""
    folder.mkdir(parents=True, exist_ok=True)
    results = []
    for task, evaluation in evaluations.items():
        first = evaluation.rollouts[0]
        caption = _caption(first)
        clip = _clip(evaluation, first, folder / f"{task}.mp4", caption)
        right = sum(rollout.played.score.success for rollout in evaluation.rollouts)
        instruction = task_named(task).instruction
        results.append(ShippedResult(task, instruction, right, len(evaluation.rollouts), clip))
    return results


def _contender(
    name: str, evaluation: Evaluation, metrics: list[dict[str, Any]], folder: Path
) -> Contender:
    """Return a policy's part of the page, with two clips.

    Scorable episodes come first, and different answers if possible.
    """
    folder.mkdir(parents=True, exist_ok=True)
    first, *rest = sorted(
        evaluation.rollouts, key=lambda rollout: not rollout.played.score.manipulation
    )
    others = [rollout for rollout in rest if rollout.played.z != first.played.z] or rest
    clips = []
    for rollout in (first, *others[:1]):
        caption = _caption(rollout)
        path = folder / f"{rollout.played.seed}.mp4"
        clips.append(_clip(evaluation, rollout, path, caption))
    summary = evaluation.summary
    assert isinstance(summary, Summary)
    return Contender(name, summary, metrics, clips)


def _caption(rollout: Rollout) -> str:
    """Return seed and answer of an episode."""
    played = rollout.played
    return f"Seed {played.seed}; to remember: {answer_text(played.z)} (z = {played.z})."


def _clip(evaluation: Evaluation, rollout: Rollout, path: Path, caption: str) -> Clip:
    save_rollout(evaluation.settings, rollout, path, CLIP_SIZE)
    return Clip(path, f"{caption} {rollout.played.score.reason.capitalize()}.")
