"""What a policy holds of expert demonstrations that it was not trained on: the material of the
probes.

Experts act, and the policy looks on: its memory is that of a right episode, whatever it would have
done itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from chameleon_policy.camo import task_named
from chameleon_policy.camo.recording import Recording
from chameleon_policy.camo.settings import CamoSettings
from chameleon_policy.console import Bar
from chameleon_policy.data.episodes import load_episodes, open_episodes
from chameleon_policy.policy import ChameleonPolicy, InstructionEncoder
from chameleon_policy.rates import Rate
from chameleon_policy.recorder import record_once
from chameleon_policy.train.linear_probe import LinearProbe
from chameleon_policy.train.store import EpisodeStore

BATCH = 8
RECORDING = 9000
"""Number of the recording that probes are fitted to; that of the one they are asked about comes
next. Trainings count from 0, and what is held out in them from 1000.
"""
WINDOW = range(-40, 9, 2)
"""Time steps around a decision, relative to it, at which all traces are kept."""


@dataclass(frozen=True, eq=False)
class Episode:
    """What the policy held of one demonstration of T steps with K decisions."""

    decisions: tuple[int, ...]
    answers: tuple[int, ...]
    """What each decision asks for."""
    working: Tensor
    """h_t of the last layer, T D."""
    tokens: Tensor
    """Z^0 at the decisions, K N D."""
    traces: Tensor
    """E at the decisions, K L N D."""
    window: Tensor
    """E of the last layer around the decisions, K W N D in half precision; NaN where the episode
    has no such step.
    """

    def working_at(self, step: int) -> Tensor | None:
        """h at a time step, if the episode has it."""
        return self.working[step] if 0 <= step < len(self.working) else None


@dataclass(frozen=True, eq=False)
class Material:
    """A task's demonstrations as a policy holds them: those that probes are fitted to, and those
    they are asked about.
    """

    task: str
    fitted: list[Episode]
    asked: list[Episode]

    @property
    def choices(self) -> int:
        """Candidates of one decision."""
        return len(task_named(self.task).candidates)

    @property
    def chance(self) -> float:
        """Of guessing z."""
        return task_named(self.task)().chance

    def numbered(self, answers: Sequence[int]) -> int:
        """z as one number: its place among all answers of the task."""
        z = tuple(answers) if len(answers) > 1 else answers[0]
        return task_named(self.task).answers.index(z)


def gather(
    policy: ChameleonPolicy,
    settings: CamoSettings,
    counts: tuple[int, int],
    folder: Path,
    bar: Bar,
    workers: int,
) -> Material:
    """Record demonstrations (once), show them to the policy, and keep what it holds of them."""
    pictures = settings.observation == "rgb"
    kind = f"rgb{settings.image_size}" if pictures else "state"
    parts = []
    for number, count in enumerate(counts):
        recording = Recording(
            task=settings.task,
            episodes=count,
            seed=RECORDING + number,
            observation=settings.observation,
        )
        recording = replace(recording, image_size=settings.image_size) if pictures else recording
        place = folder / f"{settings.task}-{kind}-{('fitted', 'asked')[number]}{count}"
        record_once(recording, place, bar, workers)
        encoder = (
            None
            if policy.features.language is None
            else InstructionEncoder(policy.features.language.encoder)
        )
        arrays = load_episodes(open_episodes(place), workers=workers)
        store = EpisodeStore(arrays, policy.features, policy.statistics, encoder=encoder)
        with bar(f"{settings.task}: showing {place.name}", count) as advance:
            parts.append(look(policy, store, advance))
    return Material(settings.task, *parts)


def look(
    policy: ChameleonPolicy,
    store: EpisodeStore,
    progress: Callable[[int], object] = lambda done: None,
) -> list[Episode]:
    """Every episode of a store, as the policy holds it."""
    found: list[Episode] = []
    for first in range(0, len(store), BATCH):
        numbers = range(first, min(first + BATCH, len(store)))
        seen = policy.inspect(store.batch(list(numbers)).to(policy.device).observation)
        traces = torch.stack([layer.traces for layer in seen.layers], dim=2)  # B T L N D
        for row, number in enumerate(numbers):
            decisions, length = store.decisions[number], store.lengths[number]
            steps = list(decisions.steps)
            around = torch.tensor([[step + offset for offset in WINDOW] for step in steps])
            inside = (around >= 0) & (around < length)
            window = traces[row, around.clamp(0, length - 1).to(traces.device), -1].half().cpu()
            window[~inside] = torch.nan
            found.append(
                Episode(
                    decisions=decisions.steps,
                    answers=decisions.answers,
                    working=seen.working[row, :length].float().cpu(),
                    tokens=seen.tokens[row, steps].float().cpu(),
                    traces=traces[row, steps].float().cpu(),
                    window=window,
                )
            )
        progress(len(found))
    return found


def readable_share(
    material: Material, read: Callable[[Episode], Iterable[tuple[Tensor | None, int]]]
) -> Rate | None:
    """How often a probe that is fitted to some demonstrations tells the answers of the others.

    `read` gives what there is to read of an episode, and the answers; nothing (None) where the
    episode has no such step. None where fewer than half of them have it.
    """
    parts = []
    for episodes in (material.fitted, material.asked):
        pairs = [pair for episode in episodes for pair in read(episode)]
        there = [(row, answer) for row, answer in pairs if row is not None]
        if not there or 2 * len(there) < len(pairs):
            return None
        parts.append(
            (torch.stack([row for row, _ in there]), torch.tensor([answer for _, answer in there]))
        )
    (known, answers), (asked, right) = parts
    told = LinearProbe.fit(known, answers, material.choices).told(asked)
    return Rate.of(int((told == right).sum()), len(right))
