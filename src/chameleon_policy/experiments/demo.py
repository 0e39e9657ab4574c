"""`chameleon demo`: demonstrations, a policy with memory and its twin without, both scored in
closed loop, on one page.

Everything is made here and now, on a CPU: nothing is downloaded. What is already in the folder is
kept, so that the same command goes on after an interruption. At the end the policy that comes with
the package plays all three tasks from pictures.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from rich.console import Console

from chameleon_policy.camo import TASKS, Summary, task_named
from chameleon_policy.camo.recording import Recording
from chameleon_policy.console import Bar
from chameleon_policy.evaluate.evaluation import FIRST_SEED, Evaluation, evaluation_seeds
from chameleon_policy.evaluate.videos import save_rollout
from chameleon_policy.experiments.pipeline import play, train_once
from chameleon_policy.policy.saving import SHIPPED
from chameleon_policy.provenance import write_result
from chameleon_policy.recorder import record_once
from chameleon_policy.report.demo_page import Clip, Contender, Showing, demo_page
from chameleon_policy.report.evaluation_table import evaluation_table
from chameleon_policy.train.metrics import METRICS, read_metrics
from chameleon_policy.train.run import RunConfig

TASK = "clean-plate"
NAMES = {"chameleon": "Chameleon", "no-memory": "its memoryless twin"}
SAMPLING_STEPS = 4
SHIPPED_POLICY = SHIPPED / "camo-small"
CLIP_SIZE = 200


@dataclass(frozen=True, kw_only=True)
class DemoConfig:
    """How large a demonstration; the defaults fill about seven minutes on two cores."""

    demonstrations: int = 150
    """Expert episodes to learn from."""
    minutes: float = 3.4
    """Training of Chameleon."""
    twin_minutes: float = 1.2
    """Training of the memoryless twin."""
    episodes: int = 36
    """Held-out episodes for each of the two."""
    shipped_episodes: int = 2
    """Held-out episodes of each task for the policy that comes with the package."""
    seed: int = 0
    """Of demonstrations and training; held-out episodes stay the same."""

    def __post_init__(self) -> None:
        for name in ("episodes", "shipped_episodes"):
            if getattr(self, name) < 1:
                raise ValueError(
                    f"--{name.replace('_', '-')} must be at least 1, got {getattr(self, name)}"
                )


def run_demo(config: DemoConfig, out: Path, bar: Bar, console: Console, command: str) -> Path:
    """Record, train, evaluate, and write the page; returns its path."""
    started = time.perf_counter()
    seeds = evaluation_seeds(FIRST_SEED, config.episodes)
    console.rule("1. Demonstrations")
    recording = Recording(
        task=TASK, episodes=config.demonstrations, seed=config.seed, observation="state"
    )
    record_once(recording, out / "data", bar, workers=2)
    evaluations: dict[str, Evaluation] = {}
    for number, (method, minutes) in enumerate(
        {"chameleon": config.minutes, "no-memory": config.twin_minutes}.items()
    ):
        console.rule(f"{number + 2}. Training {NAMES[method]}")
        run = RunConfig.by_recipe(
            "camo-state",
            data=(out / "data",),
            training={"minutes": minutes, "seed": config.seed},
            method=method,
            preset="nano",
        )
        train_once(run, out / method, console, device="cpu")
    console.rule("4. Closed loop")
    for method in NAMES:
        evaluations[method] = play(
            out / method, TASK, seeds, bar, device="cpu", steps=SAMPLING_STEPS
        )
        console.print(evaluation_table(evaluations[method], NAMES[method]))
    metrics = {method: read_metrics(out / method / METRICS) for method in NAMES}
    contenders = [
        Contender(
            NAMES[method],
            _summary(evaluation),
            metrics[method],
            _clips(evaluation, out / "clips" / method),
        )
        for method, evaluation in evaluations.items()
    ]
    console.rule("5. The policy that comes with the package")
    few = evaluation_seeds(FIRST_SEED, config.shipped_episodes)
    shipped = {
        task: play(SHIPPED_POLICY, task, few, bar, device="cpu", parallel=min(len(few), 36))
        for task in TASKS
    }
    showings = [
        _showing(task, evaluation, out / "clips" / SHIPPED_POLICY.name)
        for task, evaluation in shipped.items()
    ]
    for showing in showings:
        console.print(f"{showing.task}: {showing.right} of {showing.episodes} right")
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
    write_result(out / "scores.json", result, command=command, seeds=max(seeds, few, key=len))
    facts = [
        f"{config.demonstrations} expert demonstrations, state observations (five object slots), training seeds only.",
        f"<code>nano</code> from scratch: {config.minutes:g} minutes for Chameleon, {config.twin_minutes:g} for the twin.",
        f"{config.episodes} rollouts each on held-out seeds, {SAMPLING_STEPS} Euler steps a chunk.",
        f"The policy that comes with the package: {config.shipped_episodes} rollouts of each task.",
        f"This sitting took {minutes:.1f} minutes. Every episode's score: <code>{escape(str(out / 'scores.json'))}</code>.",
    ]
    page = out / "index.html"
    page.write_text(demo_page(TASK, task_named(TASK).instruction, contenders, facts, showings))
    return page


def _summary(evaluation: Evaluation) -> Summary:
    summary = evaluation.summary
    assert isinstance(summary, Summary)
    return summary


def _showing(task: str, evaluation: Evaluation, folder: Path) -> Showing:
    """What the page says of a task: how many episodes were right, and the first episode, whatever
    came of it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    first = evaluation.rollouts[0]
    path = folder / f"{task}.mp4"
    save_rollout(evaluation.settings, first, path, CLIP_SIZE)
    clip = Clip(
        path,
        f"Seed {first.played.seed}, z = {first.played.z}. {first.played.score.reason.capitalize()}.",
    )
    right = sum(rollout.played.score.success for rollout in evaluation.rollouts)
    return Showing(task, task_named(task).instruction, right, len(evaluation.rollouts), clip)


def _clips(evaluation: Evaluation, folder: Path) -> list[Clip]:
    """Two episodes that tell the story: successes and wrong choices before mishaps, different
    answers if possible.
    """
    folder.mkdir(parents=True, exist_ok=True)
    telling = sorted(evaluation.rollouts, key=lambda rollout: not rollout.played.score.manipulation)
    first = telling[0]
    others = [each for each in telling[1:] if each.played.z != first.played.z] or telling[1:]
    clips = []
    for rollout in (first, *others[:1]):
        played = rollout.played
        path = folder / f"{played.seed}.mp4"
        save_rollout(evaluation.settings, rollout, path, CLIP_SIZE)
        clips.append(
            Clip(
                path,
                f"Seed {played.seed}: plate {played.z} was used. {played.score.reason.capitalize()}.",
            )
        )
    return clips
