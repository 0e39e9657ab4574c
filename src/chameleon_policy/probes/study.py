"""`chameleon probe`: all three probes of some runs, a file for every run and task; the same command
goes on where it was.

out/
    demonstrations/            what probes are fitted to and asked about; every run sees the same
    <run>/<task>.json          what was found, with its own provenance
    <run>/<task>.npz           h of the demonstrations that probes are asked about, for trajectories
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from chameleon_policy.camo import TASKS, task_named
from chameleon_policy.camo.scoring import summarise
from chameleon_policy.camo.settings import CamoSettings
from chameleon_policy.console import Bar
from chameleon_policy.device import Device
from chameleon_policy.evaluate.evaluation import FIRST_SEED, evaluation_seeds
from chameleon_policy.evaluate.loading import load_for_evaluation, training_of
from chameleon_policy.evaluate.rollouts import Policy
from chameleon_policy.policy import ChameleonPolicy
from chameleon_policy.policy.ssm import SSMState
from chameleon_policy.probes.addressability import INTERVENTIONS, addressability, readable
from chameleon_policy.probes.continuation import play, play_twins
from chameleon_policy.probes.prospectiveness import prospectiveness
from chameleon_policy.probes.representations import Episode, gather
from chameleon_policy.probes.separability import separability
from chameleon_policy.provenance import write_result
from chameleon_policy.recorder import find_recording

SURGERY = "seasonings"
"""Where the paper edits memories: three decisions that look the same."""
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
"""What a finding consists of."""
Finding = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Study:
    """How the probes are made; two findings with the same settings compare."""

    fitted: int = 120
    """Demonstrations of a task that probes are fitted to."""
    asked: int = 60
    """Others that they are asked about."""
    episodes: int = 36
    """Held-out episodes that the policy plays, and plays again with edited memories."""
    steps: int = 8
    """Euler steps of a chunk."""

    def __post_init__(self) -> None:
        for name in ("fitted", "asked", "episodes", "steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"--{name} must be at least 1, got {getattr(self, name)}")


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a study is made, and with what."""

    out: Path
    command: str
    device: Device = "auto"
    workers: int = 2


def name_of(run: Path | str) -> str:
    """What a run is called in results."""
    path = Path(run)
    return path.parent.name if path.name == "policy" else path.name


def trained_on(run: Path | str) -> tuple[str, ...]:
    """The tasks whose recordings a run was trained on, where they are still there."""
    training = training_of(run)
    paths = [] if training is None else str(training["data"]["path"]).split()
    recordings = [find_recording(Path(path)) for path in paths]
    return tuple(json.loads(path.read_text())["task"] for path in recordings if path is not None)


def tasks_of(
    run: Path | str, wanted: Sequence[str], device: Device
) -> dict[str, tuple[ChameleonPolicy, CamoSettings]]:
    """The tasks that a run's policy can play, among those that are wanted (none: all); ValueError
    if there is none.
    """
    for task in wanted:
        task_named(task)  # or ValueError
    found: dict[str, tuple[ChameleonPolicy, CamoSettings]] = {}
    refusals = []
    for task in wanted or trained_on(run) or TASKS:
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
                f"{run} was trained with the answer in its observations: there is no memory to look into"
            )
    if not found:
        raise ValueError(refusals[0])
    return found


def _with_traces(run: Path | str, policy: Policy) -> ChameleonPolicy:
    """The policy, if it is one that probes can look into; better refused now than after the
    demonstrations.
    """
    if not isinstance(policy, ChameleonPolicy):
        raise ValueError(
            f"{run}: probes look into Chameleon's memory layers, and this is another method"
        )
    slow = policy.initial_state(1).layers[0].slow
    if not isinstance(slow, SSMState) or slow.ssm.shape[1] != policy.features.tokens:
        raise ValueError(
            f"{run}: {policy.method} keeps no trace for every token, so there are none to look into"
        )
    if policy.statistics.action is None:
        raise ValueError(
            f"{run} was saved without statistics of its actions; probes need a policy that was trained"
        )
    return policy


def check_names(runs: Sequence[Path | str]) -> None:
    """ValueError if two runs would be called the same."""
    names = [name_of(run) for run in runs]
    if len(set(names)) < len(names):
        raise ValueError(
            f"runs need names of their own (the last part of their paths), got {', '.join(names)}"
        )


def fingerprint(policy: ChameleonPolicy) -> str:
    """Tells the weights of a policy from all others."""
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
    place: Place,
    bar: Bar,
) -> list[Finding]:
    """What was found, or is found now, run by run and task by task.

    Memories are edited in the tasks named by `surgery`; without names in seasonings, or in all that
    the policy plays if that is not among them, and with the name `none` nowhere.
    """
    for task in surgery:
        if task != NONE:
            task_named(task)  # or ValueError
    check_names(runs)
    findings = []
    for run in runs:
        known = tasks_of(run, tasks, place.device)
        operated = (
            ()
            if tuple(surgery) == (NONE,)
            else surgery or ((SURGERY,) if SURGERY in known else tuple(known))
        )
        for task, (policy, settings) in known.items():
            file = place.out / name_of(run) / f"{task}.json"
            if not _there(file, study, fingerprint(policy), surgery=task in operated):
                _probe(policy, settings, file, study, place, bar, surgery=task in operated)
            findings.append(_read(file))
    return findings


def found_before(runs: Sequence[Path | str], tasks: Sequence[str], out: Path) -> list[Finding]:
    """What `probe_runs` has found so far, whatever its settings were; ValueError if that is
    nothing.
    """
    files = [out / name_of(run) / f"{task}.json" for run in runs for task in tasks or TASKS]
    findings = [_read(file) for file in files if file.exists()]
    if not findings:
        raise ValueError(
            f"nothing was found in {out} yet for {', '.join(map(name_of, runs))}; leave out --found-only"
        )
    return findings


def _there(file: Path, study: Study, weights: str, *, surgery: bool) -> bool:
    """Whether the file has all that is asked for; ValueError if it was made with other settings, or
    of another policy.
    """
    if not file.exists():
        return False
    finding = _read(file)
    if finding["weights"] != weights:
        raise ValueError(
            f"{file} is about a policy with other weights; move it away, or choose another --out"
        )
    if finding["study"] != asdict(study):
        raise ValueError(
            f"{file} was made with other settings ({finding['study']}); give the same, choose another --out, or look at it "
            "as it is: --found-only"
        )
    return not surgery or finding["addressability"] is not None


def _read(file: Path) -> Finding:
    """A finding with its provenance."""
    try:
        document = json.loads(file.read_text())
        provenance = {
            name: document[name] for name in ("command", "hardware", "git_revision", "duration_s")
        }
        return {**provenance, **{name: document["result"][name] for name in RESULT}}
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{file} is no finding of a probe ({error!r}); move it away") from error


def _probe(
    policy: ChameleonPolicy,
    settings: CamoSettings,
    file: Path,
    study: Study,
    place: Place,
    bar: Bar,
    *,
    surgery: bool,
) -> None:
    task, seeds = settings.task, evaluation_seeds(FIRST_SEED, study.episodes)
    demonstrations = place.out / "demonstrations"
    material = gather(
        policy, settings, (study.fitted, study.asked), demonstrations, bar, place.workers
    )
    with bar(f"{task}: fitting probes", 2) as advance:
        separable = separability(material, torch.Generator().manual_seed(0))
        advance(1)
        prospective = prospectiveness(material)
        advance(2)
    with bar(f"{task}: playing", study.episodes) as advance:
        played = play(
            policy, settings, seeds, steps=study.steps, workers=place.workers, progress=advance
        )
    addressed = None
    if surgery:
        with bar(f"{task}: playing twins", study.episodes) as advance:
            twins = play_twins(policy, played, progress=advance)
        with bar(f"{task}: editing memories", len(INTERVENTIONS) * played.decisions) as advance:
            addressed = addressability(
                policy, played, twins, readable(material), INTERVENTIONS, advance
            )
    scores = summarise(
        [rollout.played.score for rollout in played.rollouts], task_named(task)().chance
    )
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
    np.savez_compressed(file.with_suffix(".npz"), **_trajectories(material.asked))  # type: ignore[arg-type]
    write_result(file, result, command=place.command, seeds=seeds)


def _trajectories(episodes: Sequence[Episode]) -> Mapping[str, np.ndarray]:
    """h of all episodes, one behind the other."""
    return {
        "working": torch.cat([episode.working for episode in episodes]).half().numpy(),
        "lengths": np.array([len(episode.working) for episode in episodes]),
        "decisions": np.array([episode.decisions[0] for episode in episodes]),
        "answers": np.array([episode.answers for episode in episodes]),
    }
