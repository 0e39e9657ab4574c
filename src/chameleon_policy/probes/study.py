"""All three probes of some runs, for `chameleon probe`.

The same command resumes an interrupted study. Files:

    out/demonstrations/       recordings that probes are fitted to and evaluated on, for all runs
    out/<run>/<task>.json     the finding of one run and task, with its provenance
    out/<run>/<task>.npz      h on the demonstrations for evaluation, to draw trajectories
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from chameleon_policy.camo import TASKS, task_named
from chameleon_policy.camo.settings import CamoSettings
from chameleon_policy.console import Bar, check_counts, progress_bar
from chameleon_policy.device import Device
from chameleon_policy.evaluate.evaluation import FIRST_SEED, evaluation_seeds
from chameleon_policy.evaluate.loading import load_for_evaluation, training_of
from chameleon_policy.evaluate.rollouts import Policy
from chameleon_policy.json_files import read_json, read_json_object
from chameleon_policy.policy import ChameleonPolicy
from chameleon_policy.policy.memory import LayerState
from chameleon_policy.policy.places import shipped
from chameleon_policy.policy.ssm import SSMState
from chameleon_policy.probes.addressability import (
    INTERVENTIONS,
    addressability,
    trace_accuracies,
)
from chameleon_policy.probes.continuation import play_episodes, play_twins
from chameleon_policy.probes.prospectiveness import prospectiveness
from chameleon_policy.probes.representations import Episode, gather_material
from chameleon_policy.probes.separability import separability
from chameleon_policy.provenance import write_result
from chameleon_policy.recorder import find_recording
from chameleon_policy.suite import PAPER_TASKS
from chameleon_policy.writing import check_folder, whole_file

FINDINGS = Path("runs/probes")
"""Where `chameleon probe` keeps its findings, and `chameleon report` looks for them, by default."""
SURGERY = "seasonings"
"""Task in which the paper edits memories: three decisions that look the same."""
NONE = "none"
RESULT = (
    "run",
    "weights",
    "method",
    "preset",
    "task",
    "observation",
    "study",
    "scores",
    "separability",
    "prospectiveness",
    "addressability",
)
"""Keys of a finding."""
Finding = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Study:
    """Settings of the probes; findings with the same settings can be compared."""

    fitted: int = 120
    """Demonstrations per task that probes are fitted to."""
    asked: int = 60
    """Further demonstrations per task that probes are evaluated on."""
    episodes: int = 36
    """Held-out episodes per task, played once and then continued with edited memories."""
    steps: int = 8
    """Euler steps per chunk."""

    def __post_init__(self) -> None:
        check_counts(fitted=self.fitted, asked=self.asked, episodes=self.episodes, steps=self.steps)


@dataclass(frozen=True, kw_only=True)
class StudyContext:
    """The output folder, the machine and the progress bar of a study."""

    out: Path
    command: str
    """The command that was typed, for the results."""
    device: Device = "auto"
    workers: int = 2
    """Processes that record and play episodes."""
    bar: Bar = progress_bar


def name_of(run: Path | str) -> str:
    """Return the name of a run in results."""
    path = Path(run)
    return path.parent.name if path.name == "policy" else path.name


def trained_on(run: Path | str) -> tuple[str, ...]:
    """Return the tasks of the recordings that a run was trained on, as far as they still exist."""
    training = training_of(run)
    if training is None:
        return ()
    data = training["data"]
    if not isinstance(data, dict) or not isinstance(data.get("path"), str):
        raise ValueError(f"{run}: its settings do not say what it was trained on; give --task")
    recordings = [find_recording(Path(path)) for path in data["path"].split()]
    return tuple(str(read_json_object(path).get("task")) for path in recordings if path is not None)


def tasks_of(
    run: Path | str, wanted: Sequence[str], device: Device
) -> dict[str, tuple[ChameleonPolicy, CamoSettings]]:
    """Return the policy and settings for each wanted task (default: all) that a run can play.

    Raises a ValueError if there is none.
    """
    for task in wanted:
        task_named(task)  # or ValueError
    found: dict[str, tuple[ChameleonPolicy, CamoSettings]] = {}
    refusals = []
    usual = PAPER_TASKS if str(run) in shipped() else TASKS
    for task in wanted or trained_on(run) or usual:
        try:
            policy, settings = load_for_evaluation(run, task, device)
        except ValueError as error:
            if wanted:
                raise
            refusals.append(str(error))
            continue
        assert isinstance(settings, CamoSettings)
        found[task] = _with_traces(run, policy), settings
        if settings.kind == "told":
            raise ValueError(
                f"{run} was trained with the answer in its observations; it has no memory to probe"
            )
    if not found:
        raise ValueError(refusals[0])
    return found


def _with_traces(run: Path | str, policy: Policy) -> ChameleonPolicy:
    """Return the policy if its memory has traces that probes can read; ValueError otherwise."""
    if not isinstance(policy, ChameleonPolicy):
        raise ValueError(
            f"{run}: probes read Chameleon's memory layers, and this is another method"
        )
    memory = policy.initial_state(1).layers[0]
    slow = memory.slow if isinstance(memory, LayerState) else None
    if not isinstance(slow, SSMState) or slow.ssm.shape[1] != policy.features.tokens:
        raise ValueError(
            f"{run}: {policy.method} keeps no trace for every token, so there are none to probe"
        )
    if policy.statistics.action is None:
        raise ValueError(
            f"{run} was saved without statistics of its actions; probes need a trained policy"
        )
    return policy


def check_names(runs: Sequence[Path | str]) -> None:
    """Raise a ValueError if two runs have the same name."""
    names = [name_of(run) for run in runs]
    if len(set(names)) < len(names):
        raise ValueError(
            f"runs need names of their own (the last part of their paths), got {', '.join(names)}"
        )


def fingerprint(policy: ChameleonPolicy) -> str:
    """Return a hash of a policy's architecture and weights."""
    digest = hashlib.sha256(policy.signature.encode())
    for name, weight in sorted(policy.state_dict().items()):
        digest.update(name.encode())
        digest.update(weight.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def probe_runs(
    runs: Sequence[Path | str],
    tasks: Sequence[str],
    surgery: Sequence[str],
    study: Study,
    context: StudyContext,
) -> list[Finding]:
    """Return the findings for each run and task, measuring those that do not exist yet.

    Memories are edited in the tasks named by `surgery`. Without names it is seasonings, or every
    task if the policy does not play seasonings; the name `none` skips the edits.
    """
    for task in surgery:
        if task != NONE:
            task_named(task)  # or ValueError
    check_names(runs)
    check_folder(context.out, "--out")
    findings = []
    for run in runs:
        playable = tasks_of(run, tasks, context.device)
        edited = (
            ()
            if tuple(surgery) == (NONE,)
            else surgery or ((SURGERY,) if SURGERY in playable else tuple(playable))
        )
        for task, (policy, settings) in playable.items():
            file = context.out / name_of(run) / f"{task}.json"
            if not _is_complete(file, study, fingerprint(policy), surgery=task in edited):
                _measure(policy, settings, file, study, context, surgery=task in edited)
            findings.append(read_finding(file))
    return findings


def earlier_findings(runs: Sequence[Path | str], tasks: Sequence[str], out: Path) -> list[Finding]:
    """Read the findings of earlier calls of `probe_runs`, whatever their settings.

    Raises a ValueError if there are none.
    """
    files = [out / name_of(run) / f"{task}.json" for run in runs for task in tasks or TASKS]
    findings = [read_finding(file) for file in files if file.exists()]
    if not findings:
        raise ValueError(
            f"{out} has no findings for {', '.join(map(name_of, runs))} yet; leave out --found-only"
        )
    return findings


def _is_complete(file: Path, study: Study, weights: str, *, surgery: bool) -> bool:
    """Return whether the file holds the wanted finding.

    Raises a ValueError if its settings or its policy differ.
    """
    if not file.exists():
        return False
    finding = read_finding(file)
    if finding["weights"] != weights:
        raise ValueError(
            f"{file} is about a policy with other weights; move it away, or choose another --out"
        )
    if finding["study"] != asdict(study):
        raise ValueError(
            f"{file} was made with other settings ({finding['study']}); give the same, choose "
            "another --out, or show it as it is with --found-only"
        )
    return not surgery or finding["addressability"] is not None


def read_finding(file: Path) -> Finding:
    """Read a finding with its provenance."""
    try:
        document = read_json(file, "move it away")
        provenance = {
            name: document[name] for name in ("command", "hardware", "git_revision", "duration_s")
        }
        return {**provenance, **{name: document["result"][name] for name in RESULT}}
    except (KeyError, TypeError) as error:
        raise ValueError(f"{file} is no finding of a probe ({error!r}); move it away") from error


def _measure(
    policy: ChameleonPolicy,
    settings: CamoSettings,
    file: Path,
    study: Study,
    context: StudyContext,
    *,
    surgery: bool,
) -> None:
    """Run the probes of one run and task, and write their finding."""
    task, seeds = settings.task, evaluation_seeds(FIRST_SEED, study.episodes)
    bar, workers = context.bar, context.workers
    demonstrations = context.out / "demonstrations"
    material = gather_material(
        policy, settings, (study.fitted, study.asked), demonstrations, bar, workers
    )
    with bar(f"{task}: fitting probes", 2) as advance:
        separable = separability(material, torch.Generator().manual_seed(0))
        advance(1)
        prospective = prospectiveness(material)
        advance(2)
    with bar(f"{task}: playing", study.episodes) as advance:
        played = play_episodes(
            policy, settings, seeds, steps=study.steps, workers=workers, progress=advance
        )
    addressed = None
    if surgery:
        with bar(f"{task}: playing twins", study.episodes) as advance:
            twins = play_twins(policy, played, progress=advance)
        with bar(f"{task}: editing memories", len(INTERVENTIONS) * played.decisions) as advance:
            addressed = addressability(
                policy, played, twins, trace_accuracies(material), INTERVENTIONS, advance
            )
    scores = task_named(task)().summarise([rollout.played for rollout in played.rollouts])
    result = {
        "run": file.parent.name,
        "weights": fingerprint(policy),
        "method": policy.method,
        "preset": policy.config.preset,
        "task": task,
        "observation": settings.observation,
        "study": asdict(study),
        "scores": scores.as_dict(),
        "separability": separable.as_dict(),
        "prospectiveness": prospective.as_dict(),
        "addressability": None if addressed is None else addressed.as_dict(),
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(file.with_suffix(".npz")) as unfinished:
        np.savez_compressed(unfinished, **_trajectories(material.asked))  # type: ignore[arg-type]
    write_result(file, result, command=context.command, seeds=seeds)


def _trajectories(episodes: Sequence[Episode]) -> Mapping[str, np.ndarray]:
    """Return h of all episodes, concatenated, with their lengths, first decisions and answers."""
    return {
        "working": torch.cat([episode.working for episode in episodes]).half().numpy(),
        "lengths": np.array([len(episode.working) for episode in episodes]),
        "decisions": np.array([episode.decisions[0] for episode in episodes]),
        "answers": np.array([episode.answers for episode in episodes]),
    }
