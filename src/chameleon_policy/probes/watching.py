"""Episodes for the memory theatre: what a policy recalled and believed at each step, and what other
memories lead to.
"""

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
from chameleon_policy.probes.addressability import Intervention, Surgeon
from chameleon_policy.probes.continuation import Continued, Played, go_on, stage
from chameleon_policy.probes.representations import Material
from chameleon_policy.probes.theatre_episode import (
    Belief,
    Counterfactual,
    TheatreEpisode,
    TokenLayout,
)
from chameleon_policy.train.linear_probe import LinearProbe

PLACES = ("left", "middle", "right")
"""Candidates as the third view shows them."""
QUESTIONS = {
    "clean-plate": ("which plate",),
    "shell-game": ("which cup",),
    "seasonings": ("first seasoning", "second seasoning", "third seasoning"),
}
STRIDE = 2
"""Of the time steps of a demonstration that the probes of beliefs are fitted to."""
WHAT_IFS: dict[Intervention, str] = {
    Intervention(
        "as it was", "nothing"
    ): "Nothing is edited: the policy goes on with its own memory.",
    Intervention("swap the relevant traces", "swap", "decoded"): (
        "In the last layer, the quarter of the traces from which the next choice is read best comes from an episode in the "
        "same scene that was shown another answer."
    ),
    Intervention(
        "swap every trace", "swap", layers="all"
    ): "All traces of all layers come from that other episode.",
    Intervention("swap the working state", "swap", layers="all", part="working"): (
        "The traces stay; what the fast layers carry comes from that other episode."
    ),
    Intervention(
        "swap everything", "swap", layers="all", part="both"
    ): "The whole memory is that of the other episode.",
}


@dataclass(eq=False)
class Watcher:
    """Keeps what recall attended to and what the working state was, robot by robot, at every
    step.
    """

    attention: list[Tensor] = field(default_factory=list)
    working: list[Tensor] = field(default_factory=list)

    def __call__(self, seen: Inspection) -> None:
        """Take in a step."""
        self.attention.append(seen.attention[:, 0].half().cpu())
        self.working.append(seen.working[:, 0].float().cpu())


def beliefs(material: Material) -> list[LinearProbe]:
    """A probe for every place of z, fitted to h at all times: early ones teach it what cannot be
    known yet.
    """
    rows = torch.cat([episode.working[::STRIDE] for episode in material.fitted])
    probes = []
    for place in range(len(material.fitted[0].answers)):
        answers = [
            torch.full((len(each.working[::STRIDE]),), each.answers[place])
            for each in material.fitted
        ]
        probes.append(LinearProbe.fit(rows, torch.cat(answers), material.choices))
    return probes


def telling(rollouts: Sequence[Rollout], count: int) -> list[int]:
    """Episodes worth looking at: a success, a wrong choice, then others with answers that were not
    shown yet.
    """
    order: list[int] = []
    for wanted in ("success", "wrong choice"):
        order += [
            number for number, each in enumerate(rollouts) if each.played.score.reason == wanted
        ][:1]
    rest = [number for number in range(len(rollouts)) if number not in order]
    while rest and len(order) < count:
        shown = [rollouts[number].played.z for number in order]
        order.append(
            rest.pop(
                min(range(len(rest)), key=lambda place: shown.count(rollouts[rest[place]].played.z))
            )
        )
    return sorted(order[:count])


def theatre_episodes(
    policy: ChameleonPolicy,
    name: str,
    played: Played,
    twins: Played,
    watcher: Watcher,
    material: Material,
    shares: Tensor,
    chosen: Sequence[int],
    *,
    size: int = 160,
    progress: Callable[[int], object] = lambda done: None,
) -> list[TheatreEpisode]:
    """The chosen episodes with everything that the theatre shows; `shares` tells relevant traces
    (see `readable`).
    """
    probes = beliefs(material)
    what_ifs = _what_ifs(policy, played, twins, probes, shares, chosen, size, progress)
    layout = layout_of(policy.features)
    episodes = []
    for number in chosen:
        rollout = played.rollouts[number]
        scene = replay_scene(played.settings, rollout, size)
        steps = len(scene.phases)
        working = torch.stack([each[number] for each in watcher.working[:steps]])
        attention = (
            torch.stack([each[number] for each in watcher.attention[:steps]]).float().numpy()
        )
        z = rollout.played.z
        answers = z if isinstance(z, tuple) else (z,)
        questions = zip(QUESTIONS[played.settings.task], probes, answers, strict=True)
        episodes.append(
            TheatreEpisode(
                policy=name,
                task=played.settings.task,
                seed=rollout.played.seed,
                answer=in_words(z),
                outcome=rollout.played.score.reason,
                success=rollout.played.score.success,
                hz=CONTROL_HZ,
                frames=scene.frames,
                phases=scene.phases,
                layout=layout,
                attention=attention / attention.sum(-1, keepdims=True),
                beliefs=tuple(
                    Belief(question, PLACES, truth, probe.shares(working).numpy())
                    for question, probe, truth in questions
                ),
                positions=scene.positions,
                candidates=scene.candidates,
                counterfactuals=tuple(what_ifs[number]),
            )
        )
    return episodes


def in_words(z: Answer) -> str:
    """left; or left, right, left."""
    return ", ".join(PLACES[place] for place in (z if isinstance(z, tuple) else (z,)))


def layout_of(features: Features) -> TokenLayout:
    """Where a policy's tokens come from."""
    slots = (
        ()
        if features.objects is None
        else tuple(f"object {slot + 1}" for slot in range(features.objects.count))
    )
    margin = (
        (1 - features.views[0].crop[0] / features.views[0].height) / 2 if features.views else 0.0
    )
    return TokenLayout(
        {view.name: view.grid for view in features.views}, (*slots, "body", "instruction"), margin
    )


@dataclass(frozen=True, eq=False)
class Scene:
    """An episode as the cameras saw it."""

    frames: dict[str, np.ndarray]
    """View -> pictures from the beginning, or from a decision on."""
    phases: tuple[str, ...]
    positions: np.ndarray
    candidates: dict[str, tuple[float, float]]


def replay_scene(settings: CamoSettings, rollout: Rollout, size: int, decision: int = -1) -> Scene:
    """Play a rollout's actions again, in pictures of this size, from its beginning or from one of
    its decisions on.
    """
    env = replace(settings, observation="state", kind="policy", until_choice=None).make_env()
    try:
        env.reset(seed=rollout.played.seed)
        frames, phases, positions = [], [], []
        candidates: dict[str, tuple[float, float]] = {}
        # After the last action nothing is done any more: what was seen then belongs to no step of
        # the policy.
        for number in range(len(rollout.actions)):
            if number:
                env.step(rollout.actions[number - 1])
            phases.append(env.phase)
            positions.append(env.proprioception()[:3])
            if len(env.decisions) > decision:  # drawing takes most of the time
                frames.append(env.frames(size))
            if env.phase == "decision" and not candidates:
                candidates = _candidates(env)
        views = {view: np.stack([frame[view] for frame in frames]) for view in frames[0]}
        return Scene(views, tuple(phases), np.stack(positions), candidates)
    finally:
        env.close()


def _candidates(env: CamoEnv) -> dict[str, tuple[float, float]]:
    poses = sorted(
        (env.world.position(name) for name in env.task.candidates), key=lambda position: position[1]
    )
    return {place: (float(x), float(y)) for place, (x, y, _) in zip(PLACES, poses, strict=True)}


def _what_ifs(
    policy: ChameleonPolicy,
    played: Played,
    twins: Played,
    probes: Sequence[LinearProbe],
    shares: Tensor,
    chosen: Sequence[int],
    size: int,
    progress: Callable[[int], object],
) -> dict[int, list[Counterfactual]]:
    """Episode -> what it leads to when its memory is edited, at each of its decisions."""
    found: dict[int, list[Counterfactual]] = {number: [] for number in chosen}
    done = 0
    for decision in range(played.decisions):
        surgeon = Surgeon(played, twins, decision, shares)
        with stage(played, decision) as pool:
            for intervention, explanation in WHAT_IFS.items():
                donors = surgeon.donors(intervention)
                memories = {
                    number: surgeon.edited(number, donors[number].memory, intervention)
                    for number in chosen
                    if number in donors
                }
                for number, continued in go_on(policy, played, decision, memories, pool).items():
                    asks_for = donors[number].asks_for
                    found[number].append(
                        _counterfactual(
                            played,
                            continued,
                            decision,
                            probes[decision],
                            intervention,
                            explanation,
                            asks_for,
                            size,
                        )
                    )
                done += 1
                progress(done)
    return found


def _counterfactual(
    played: Played,
    continued: Continued,
    decision: int,
    probe: LinearProbe,
    intervention: Intervention,
    explanation: str,
    asks_for: int,
    size: int,
) -> Counterfactual:
    scene = replay_scene(played.settings, continued.rollout, size, decision)
    step = [number for number, phase in enumerate(scene.phases) if phase == "decision"][decision]
    choice = continued.rollout.played.choices[decision]
    return Counterfactual(
        name=intervention.name,
        explanation=explanation,
        step=step,
        asks_for=PLACES[asks_for],
        chosen=None if choice is None else PLACES[choice],
        shares=probe.shares(continued.working).numpy(),
        plan=continued.plan[:, :3].numpy(),
        frames=next(iter(scene.frames.values())),
    )
