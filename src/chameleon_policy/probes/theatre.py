"""Episodes for the memory theatre: attention, beliefs, and continuations with edited memories."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from chameleon_policy.camo import CamoEnv
from chameleon_policy.camo.settings import CamoSettings
from chameleon_policy.camo.tasks import Answer
from chameleon_policy.camo.world import CONTROL_HZ
from chameleon_policy.evaluate.rollouts import Rollout
from chameleon_policy.policy import ChameleonPolicy, Features, Inspection
from chameleon_policy.probes.addressability import (
    Intervention,
    MemoryEditor,
    trace_accuracies,
)
from chameleon_policy.probes.continuation import (
    Continuation,
    PlayedEpisodes,
    continuation_pool,
    continue_episodes,
)
from chameleon_policy.probes.representations import Material
from chameleon_policy.probes.separability import PLACES
from chameleon_policy.probes.theatre_episode import (
    Belief,
    Counterfactual,
    TheatreEpisode,
    TokenLayout,
)
from chameleon_policy.train.held_out import LinearProbe

THREE = ("left", "middle", "right")
"""Names of three candidates."""
QUESTIONS = {
    "clean-plate": "which plate",
    "shell-game": "which cup",
    "seasonings": "{} seasoning",
    "pantry": "{} cup",
}
"""Task -> its question, or one for every element of z."""
STRIDE = 2
"""The probes of beliefs are fitted to every second time step."""
EDITS: dict[Intervention, str] = {
    Intervention(
        "as it was", "nothing"
    ): "Nothing is edited: the policy continues with its own memory.",
    Intervention("swap the relevant traces", "swap", "decoded"): (
        "In the last layer, the quarter of the traces from which the next choice is read best "
        "comes from an episode in the "
        "same scene that was shown another answer."
    ),
    Intervention(
        "swap every trace", "swap", layers="all"
    ): "All traces of all layers come from that other episode.",
    Intervention("swap the working state", "swap", layers="all", kind="working"): (
        "The traces stay; the states of the fast layers come from that other episode."
    ),
    Intervention(
        "swap everything", "swap", layers="all", kind="both"
    ): "The whole memory is that of the other episode.",
}
"""Edits that the theatre shows, with their explanations."""


@dataclass(eq=False)
class StepRecorder:
    """The attention weights of recall and the working states of all robots, step by step."""

    attention: list[Tensor] = field(default_factory=list)
    working: list[Tensor] = field(default_factory=list)

    def __call__(self, inspection: Inspection) -> None:
        """Record one step."""
        self.attention.append(inspection.attention[:, 0].half().cpu())
        self.working.append(inspection.working[:, 0].float().cpu())


@dataclass(frozen=True, eq=False)
class Playthrough:
    """Episodes that a policy has played, with everything that the theatre needs to show them."""

    policy: ChameleonPolicy
    name: str
    """Name of the run."""
    played: PlayedEpisodes
    twins: PlayedEpisodes
    recorder: StepRecorder
    material: Material
    """Demonstrations that the probes are fitted to."""
    size: int = 160
    """Height and width of the images in pixels."""


def belief_probes(material: Material) -> list[LinearProbe]:
    """Fit a probe to h for every element of z, at all times, also those at which z is unknown."""
    rows = torch.cat([episode.working[::STRIDE] for episode in material.fitted])
    probes = []
    for index in range(len(material.fitted[0].answers)):
        answers = [
            torch.full((len(episode.working[::STRIDE]),), episode.answers[index])
            for episode in material.fitted
        ]
        probes.append(LinearProbe.fit(rows, torch.cat(answers), material.choices))
    return probes


def select_examples(rollouts: Sequence[Rollout], count: int) -> list[int]:
    """Select episodes to show.

    A success and a wrong choice come first, then episodes whose answers are rarest so far.
    """
    selected: list[int] = []
    for reason in ("success", "wrong choice"):
        selected += [
            index for index, rollout in enumerate(rollouts) if rollout.played.score.reason == reason
        ][:1]
    rest = [index for index in range(len(rollouts)) if index not in selected]
    while rest and len(selected) < count:
        shown = [rollouts[index].played.z for index in selected]
        rarest = min(rest, key=lambda index: shown.count(rollouts[index].played.z))
        rest.remove(rarest)
        selected.append(rarest)
    return sorted(selected[:count])


def theatre_episodes(
    playthrough: Playthrough,
    selected: Sequence[int],
    progress: Callable[[int], object] = lambda done: None,
) -> list[TheatreEpisode]:
    """Return the selected episodes with everything that the theatre shows."""
    probes = belief_probes(playthrough.material)
    counterfactuals = _counterfactuals(playthrough, probes, selected, progress)
    return [
        _theatre_episode(playthrough, index, probes, counterfactuals[index]) for index in selected
    ]


def _theatre_episode(
    playthrough: Playthrough,
    index: int,
    probes: Sequence[LinearProbe],
    counterfactuals: Sequence[Counterfactual],
) -> TheatreEpisode:
    settings, rollout = playthrough.played.settings, playthrough.played.rollouts[index]
    replay = replay_episode(settings, rollout, playthrough.size)
    steps = len(replay.phases)
    recorder = playthrough.recorder
    working = torch.stack([step[index] for step in recorder.working[:steps]])
    attention = torch.stack([step[index] for step in recorder.attention[:steps]]).float().numpy()
    z, names = rollout.played.z, tuple(replay.candidates)
    answers = z if isinstance(z, tuple) else (z,)
    return TheatreEpisode(
        policy=playthrough.name,
        task=settings.task,
        seed=rollout.played.seed,
        answer=answer_text(z, names),
        outcome=rollout.played.score.reason,
        success=rollout.played.score.success,
        hz=CONTROL_HZ,
        frames=replay.frames,
        phases=replay.phases,
        layout=token_layout(playthrough.policy.features),
        attention=attention / attention.sum(-1, keepdims=True),
        beliefs=tuple(
            Belief(
                QUESTIONS[settings.task].format(PLACES[number]),
                names,
                truth,
                probe.probabilities(working).numpy(),
            )
            for number, (probe, truth) in enumerate(zip(probes, answers, strict=True))
        ),
        positions=replay.positions,
        candidates=replay.candidates,
        counterfactuals=tuple(counterfactuals),
    )


def candidate_names(count: int) -> tuple[str, ...]:
    """Return the names of candidates from left to right, as the third view shows them."""
    if count == len(THREE):
        return THREE
    return tuple(f"place {number + 1}" for number in range(count))


def answer_text(z: Answer, names: Sequence[str] = THREE) -> str:
    """Return an answer in words: `left`, or `left, right, left`."""
    return ", ".join(names[choice] for choice in (z if isinstance(z, tuple) else (z,)))


def token_layout(features: Features) -> TokenLayout:
    """Return where the event tokens of a policy come from."""
    slots = (
        ()
        if features.objects is None
        else tuple(f"object {slot + 1}" for slot in range(features.objects.count))
    )
    margin = (
        (1 - features.views[0].crop[0] / features.views[0].height) / 2 if features.views else 0.0
    )
    instruction = "" if features.language is None else "instruction"
    return TokenLayout(
        {view.name: view.grid for view in features.views}, (*slots, "body", instruction), margin
    )


@dataclass(frozen=True, eq=False)
class Replay:
    """The images, phases and tool positions of a replayed episode."""

    frames: dict[str, np.ndarray]
    """Images by view, from the beginning or from a decision."""
    phases: tuple[str, ...]
    positions: np.ndarray
    candidates: dict[str, tuple[float, float]]


def replay_episode(
    settings: CamoSettings, rollout: Rollout, size: int, decision: int = -1
) -> Replay:
    """Replay the actions of a rollout, with images from its start or from one of its decisions."""
    env = replace(settings, observation="state", kind="policy", until_choice=None).make_env()
    try:
        env.reset(seed=rollout.played.seed)
        frames, phases, positions = [], [], []
        candidates: dict[str, tuple[float, float]] = {}
        # The observation after the last action belongs to no step of the policy.
        for step in range(len(rollout.actions)):
            if step:
                env.step(rollout.actions[step - 1])
            phases.append(env.phase)
            positions.append(env.proprioception()[:3])
            if len(env.decisions) > decision:  # rendering takes most of the time
                frames.append(env.frames(size))
            if env.phase == "decision" and not candidates:
                candidates = _candidates(env)
        views = {view: np.stack([frame[view] for frame in frames]) for view in frames[0]}
        return Replay(views, tuple(phases), np.stack(positions), candidates)
    finally:
        env.close()


def _candidates(env: CamoEnv) -> dict[str, tuple[float, float]]:
    poses = sorted(
        (env.world.position(name) for name in env.task.present), key=lambda position: position[1]
    )
    names = candidate_names(len(poses))
    return {name: (float(x), float(y)) for name, (x, y, _) in zip(names, poses, strict=True)}


def _counterfactuals(
    playthrough: Playthrough,
    probes: Sequence[LinearProbe],
    selected: Sequence[int],
    progress: Callable[[int], object],
) -> dict[int, list[Counterfactual]]:
    """Continue the selected episodes with edited memories, at each of their decisions."""
    policy, played = playthrough.policy, playthrough.played
    accuracies = trace_accuracies(playthrough.material)
    found: dict[int, list[Counterfactual]] = {index: [] for index in selected}
    done = 0
    for decision in range(played.decisions):
        editor = MemoryEditor(played, playthrough.twins, decision, accuracies)
        with continuation_pool(played, decision) as pool:
            for intervention in EDITS:
                donors = editor.donors(intervention)
                memories = {
                    index: editor.edited(index, donors[index].memory, intervention)
                    for index in selected
                    if index in donors
                }
                continued = continue_episodes(policy, played, decision, memories, pool)
                for index, continuation in continued.items():
                    replay = replay_episode(
                        played.settings, continuation.rollout, playthrough.size, decision
                    )
                    probe, asks_for = probes[decision], donors[index].asks_for
                    found[index].append(
                        _counterfactual(
                            intervention, continuation, replay, probe, asks_for, decision
                        )
                    )
                done += 1
                progress(done)
    return found


def _counterfactual(
    intervention: Intervention,
    continuation: Continuation,
    replay: Replay,
    probe: LinearProbe,
    asks_for: int,
    decision: int,
) -> Counterfactual:
    decision_steps = [step for step, phase in enumerate(replay.phases) if phase == "decision"]
    choice, names = continuation.rollout.played.choices[decision], tuple(replay.candidates)
    return Counterfactual(
        name=intervention.name,
        explanation=EDITS[intervention],
        step=decision_steps[decision],
        asks_for=names[asks_for],
        chosen=None if choice is None else names[choice],
        shares=probe.probabilities(continuation.working).numpy(),
        plan=continuation.plan[:, :3].numpy(),
        frames=next(iter(replay.frames.values())),
    )
