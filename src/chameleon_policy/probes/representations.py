"""The material of the probes: a policy's representations of held-out expert demonstrations.

The expert acts and the policy only observes, so its memory is that of a correct episode.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from chameleon_policy.camo.recording import Recording
from chameleon_policy.camo.settings import CamoSettings
from chameleon_policy.camo.tasks import Span, Task, make_task
from chameleon_policy.console import Bar
from chameleon_policy.data import load_episodes, open_episodes
from chameleon_policy.policy import ChameleonPolicy, InstructionEncoder
from chameleon_policy.rates import Rate
from chameleon_policy.recorder import record_once
from chameleon_policy.train.held_out import LinearProbe
from chameleon_policy.train.store import EpisodeStore

BATCH = 8
RECORDING = 9000
"""Seed of the recording that probes are fitted to; the next one is that of the recording they are
evaluated on. Training data use seeds from 0 on, held-out training data from 1000 on.
"""
WINDOW = range(-40, 9, 2)
"""Time steps relative to a decision at which all traces are kept."""


@dataclass(frozen=True, eq=False)
class Episode:
    """A policy's representations of one demonstration of T steps with K decisions."""

    decisions: tuple[int, ...]
    answers: tuple[int, ...]
    """The right choice at each decision."""
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
        """Return h at a time step, or None if the episode has no such step."""
        return self.working[step] if 0 <= step < len(self.working) else None


@dataclass(frozen=True, eq=False)
class Material:
    """A policy's representations of the demonstrations of a task."""

    task: str
    fitted: list[Episode]
    """Episodes that probes are fitted to."""
    asked: list[Episode]
    """Episodes that probes are evaluated on."""
    difficulty: Mapping[str, Span] = field(default_factory=dict)

    @cached_property
    def _played(self) -> Task:
        return make_task(self.task, self.difficulty)

    @property
    def choices(self) -> int:
        """Number of candidates at one decision."""
        return len(self._played.candidates)

    @property
    def chance(self) -> float:
        """Probability of guessing z."""
        return self._played.chance

    @property
    def answers(self) -> int:
        """Number of answers of the task."""
        return len(self._played.answers)

    def answer_index(self, answers: Sequence[int]) -> int:
        """Return the index of z among all answers of the task."""
        known = self._played.answers
        return known.index(tuple(answers) if isinstance(known[0], tuple) else answers[0])


def gather_material(
    policy: ChameleonPolicy,
    settings: CamoSettings,
    counts: tuple[int, int],
    folder: Path,
    bar: Bar,
    workers: int,
) -> Material:
    """Record demonstrations unless they exist, and compute the policy's representations of them.

    ValueError if a dial gives the episodes different answers to choose from.
    """
    if ranges := make_task(settings.task, settings.difficulty).ranges:
        raise ValueError(
            f"probes compare episodes with equally many answers, and {', '.join(ranges)} of "
            f"{settings.task} is a range: give one number"
        )
    images = settings.observation == "rgb"
    kind = f"rgb{settings.image_size}" if images else "state"
    parts = []
    for index, count in enumerate(counts):
        recording = Recording(
            task=settings.task,
            episodes=count,
            seed=RECORDING + index,
            observation=settings.observation,
            object_slots=settings.object_slots,
            difficulty=settings.difficulty,
        )
        recording = replace(recording, image_size=settings.image_size) if images else recording
        path = folder / f"{settings.task}-{kind}-{('fitted', 'asked')[index]}{count}"
        record_once(recording, path, bar, workers)
        encoder = (
            None
            if policy.features.language is None
            else InstructionEncoder.of(policy.features.language)
        )
        arrays = load_episodes(open_episodes(path), workers=workers)
        store = EpisodeStore(arrays, policy.features, policy.statistics, encoder=encoder)
        with bar(f"{settings.task}: observing {path.name}", count) as advance:
            parts.append(represent(policy, store, advance))
    fitted, asked = parts
    return Material(settings.task, fitted, asked, settings.difficulty)


def represent(
    policy: ChameleonPolicy,
    store: EpisodeStore,
    progress: Callable[[int], object] = lambda done: None,
) -> list[Episode]:
    """Compute a policy's representations of every episode of a store."""
    episodes: list[Episode] = []
    for first in range(0, len(store), BATCH):
        indices = range(first, min(first + BATCH, len(store)))
        inspection = policy.inspect(store.batch(list(indices)).to(policy.device).observation)
        traces = torch.stack([layer.traces for layer in inspection.layers], dim=2)  # B T L N D
        for row, index in enumerate(indices):
            decisions, length = store.decisions[index], store.lengths[index]
            steps = list(decisions.steps)
            around = torch.tensor([[step + offset for offset in WINDOW] for step in steps])
            inside = (around >= 0) & (around < length)
            window = traces[row, around.clamp(0, length - 1).to(traces.device), -1].half().cpu()
            window[~inside] = torch.nan
            episodes.append(
                Episode(
                    decisions=decisions.steps,
                    answers=decisions.answers,
                    working=inspection.working[row, :length].float().cpu(),
                    tokens=inspection.tokens[row, steps].float().cpu(),
                    traces=traces[row, steps].float().cpu(),
                    window=window,
                )
            )
        progress(len(episodes))
    return episodes


def probe_accuracy(
    material: Material, read: Callable[[Episode], Iterable[tuple[Tensor | None, int]]]
) -> Rate | None:
    """Fit a linear probe to some demonstrations and return its accuracy on the others.

    `read` yields pairs of input and answer for an episode; an input is None where the episode has
    no such step. The result is None if fewer than half of the inputs exist.
    """
    parts = []
    for episodes in (material.fitted, material.asked):
        pairs = [pair for episode in episodes for pair in read(episode)]
        rows = [row for row, _ in pairs if row is not None]
        if not rows or 2 * len(rows) < len(pairs):
            return None
        answers = [answer for row, answer in pairs if row is not None]
        parts.append((torch.stack(rows), torch.tensor(answers)))
    (known, known_answers), (asked, right) = parts
    predicted = LinearProbe.fit(known, known_answers, material.choices).predict(asked)
    return Rate.of(int((predicted == right).sum()), len(right))
