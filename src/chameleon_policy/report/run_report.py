"""`chameleon report`: play held-out episodes of Camo, and write one page on the policies.

The page shows their scores, how they learned, clips, and the memory theatre.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from chameleon_policy.camo import task_named
from chameleon_policy.camo.settings import CamoSettings
from chameleon_policy.camo.tasks import make_task
from chameleon_policy.console import check_counts
from chameleon_policy.evaluate.evaluation import FIRST_SEED, evaluation_seeds
from chameleon_policy.evaluate.rollouts import Rollout
from chameleon_policy.evaluate.videos import save_rollout
from chameleon_policy.policy import ChameleonPolicy
from chameleon_policy.probes.continuation import PlayedEpisodes, play_episodes, play_twins
from chameleon_policy.probes.representations import gather_material
from chameleon_policy.probes.study import (
    StudyContext,
    check_names,
    earlier_findings,
    fingerprint,
    name_of,
    tasks_of,
)
from chameleon_policy.probes.theatre import (
    EDITS,
    Playthrough,
    StepRecorder,
    answer_text,
    candidate_names,
    select_examples,
    theatre_episodes,
)
from chameleon_policy.probes.theatre_episode import TheatreEpisode
from chameleon_policy.provenance import git_revision, hardware, write_result
from chameleon_policy.report.pages import Clip
from chameleon_policy.report.probe_figures import charts
from chameleon_policy.report.theatre.page import RunReport, report_page
from chameleon_policy.train.metrics import METRICS, read_metrics
from chameleon_policy.writing import check_folder, whole_file

CLIP_SIZE = 200
CLIPS = 2
"""Videos of each task."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """How much of each run and task the page shows."""

    episodes: int = 12
    """Held-out episodes to play and score."""
    shown: int = 2
    """How many of them the theatre shows."""
    fitted: int = 48
    """Demonstrations to fit the probes of beliefs to; half as many choose the relevant traces."""
    steps: int = 8
    """Euler steps of a chunk of actions."""

    def __post_init__(self) -> None:
        check_counts(episodes=self.episodes, shown=self.shown, fitted=self.fitted, steps=self.steps)
        if self.shown > self.episodes:
            raise ValueError(
                f"--shown must be at most --episodes ({self.episodes}), got {self.shown}"
            )


def report_runs(
    runs: Sequence[Path | str],
    tasks: Sequence[str],
    report: Report,
    context: StudyContext,
    *,
    probes: Path,
) -> tuple[Path, list[TheatreEpisode]]:
    """Play, probe, and write the page; return its path and the episodes of the theatre.

    Findings that `chameleon probe` keeps in the folder `probes` are drawn as well.
    """
    check_names(runs)
    check_folder(context.out, "--out")
    seeds = evaluation_seeds(FIRST_SEED, report.episodes)
    reports, episodes = [], []
    for run in runs:
        name, played = name_of(run), {}
        for task, (policy, settings) in tasks_of(run, tasks, context.device).items():
            played[task], shown = _play(policy, name, settings, report, context)
            episodes += shown
        reports.append(_run_report(run, policy, played, context.out / "clips" / name, probes))
    scores = {
        each.name: {task: summary.as_dict() for task, summary in each.scores.items()}
        for each in reports
    }
    page = context.out / "index.html"
    facts = _facts(report, context.command, seeds)
    with whole_file(page) as unfinished:
        unfinished.write_text(report_page(reports, episodes, facts), encoding="utf-8")
    write_result(
        context.out / "scores.json", {"runs": scores}, command=context.command, seeds=seeds
    )
    return page, episodes


def _facts(report: Report, command: str, seeds: Sequence[int]) -> list[str]:
    machine = hardware()
    return [
        f"Made by `{command}` at revision `{git_revision()}` "
        f"on {machine.get('gpu', machine['cpu'])}.",
        f"{report.episodes} held-out episodes of each task, seeds {seeds[0]} to {seeds[-1]}, "
        f"{report.steps} Euler steps a chunk. In brackets the 95 % Wilson interval.",
        "Beliefs are read by linear probes from the working state h; they were fitted to "
        f"{report.fitted} expert demonstrations that the policy was not trained on. What a probe "
        "can read, the policy need not use.",
        "Relevant traces are the quarter of the last layer's tokens from which a linear probe "
        "reads the next choice best.",
    ]


def _play(
    policy: ChameleonPolicy,
    name: str,
    settings: CamoSettings,
    report: Report,
    context: StudyContext,
) -> tuple[PlayedEpisodes, list[TheatreEpisode]]:
    """Play the episodes of a run and task; return them, and some of them for the theatre."""
    seeds = evaluation_seeds(FIRST_SEED, report.episodes)
    bar, workers = context.bar, context.workers
    recorder = StepRecorder()
    with bar(f"{name}: playing {settings.task}", report.episodes) as advance:
        played = play_episodes(
            policy,
            settings,
            seeds,
            steps=report.steps,
            workers=workers,
            watch=recorder,
            progress=advance,
        )
    counts, folder = (report.fitted, max(1, report.fitted // 2)), context.out / "demonstrations"
    material = gather_material(policy, settings, counts, folder, bar, workers)
    selected = select_examples(played.rollouts, report.shown)
    with bar(f"{name}: twins of {settings.task}", report.episodes) as advance:
        twins = play_twins(policy, played, progress=advance)
    edits = len(EDITS) * played.decisions
    with bar(f"{name}: {settings.task} with edited memories", edits) as advance:
        playthrough = Playthrough(policy, name, played, twins, recorder, material)
        return played, theatre_episodes(playthrough, selected, advance)


def _run_report(
    run: Path | str,
    policy: ChameleonPolicy,
    played: dict[str, PlayedEpisodes],
    folder: Path,
    probes: Path,
) -> RunReport:
    metrics: list[dict[str, Any]] = []
    if (Path(run) / METRICS).exists():
        metrics = read_metrics(Path(run) / METRICS)
    clips = [clip for each in played.values() for clip in _clips(each, folder)]
    scores = {
        task: task_named(task)().summarise([rollout.played for rollout in each.rollouts])
        for task, each in played.items()
    }
    return RunReport(
        name=name_of(run),
        method=policy.method,
        preset=policy.config.preset,
        parameters=policy.parameter_count,
        scores=scores,
        metrics=metrics,
        clips=clips,
        figures=_figures(run, policy, tuple(played), probes),
    )


def _figures(
    run: Path | str, policy: ChameleonPolicy, tasks: Sequence[str], probes: Path
) -> dict[str, Figure]:
    """Return caption -> chart of the findings on these very weights, if there are any."""
    if not any((probes / name_of(run) / f"{task}.json").exists() for task in tasks):
        return {}
    findings = [
        each
        for each in earlier_findings([run], tasks, probes)
        if each["weights"] == fingerprint(policy)
    ]
    return {name.replace("-", " "): chart for name, chart in charts(findings).items()}


def _clips(played: PlayedEpisodes, folder: Path) -> list[Clip]:
    folder.mkdir(parents=True, exist_ok=True)
    return [
        _clip(played.settings, played.rollouts[number], folder)
        for number in select_examples(played.rollouts, CLIPS)
    ]


def _clip(settings: CamoSettings, rollout: Rollout, folder: Path) -> Clip:
    path = folder / f"{settings.task}-{rollout.played.seed}.mp4"
    save_rollout(settings, rollout, path, CLIP_SIZE)
    names = candidate_names(len(make_task(settings.task, settings.difficulty).candidates))
    seed, answer = rollout.played.seed, answer_text(rollout.played.z, names)
    reason = rollout.played.score.reason.capitalize()
    return Clip(path, f"{settings.task}, seed {seed}: {answer}. {reason}.")
