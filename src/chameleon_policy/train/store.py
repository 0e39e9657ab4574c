"""Episodes in memory, and batches of them.

Episodes are decoded once and kept as uint8, on the GPU if they fit. Every field is one tensor that
holds all episodes one after the other, so that a batch is one indexed read. After an episode's end
its last frame is repeated and masked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from chameleon_policy.data.episodes import EpisodeArrays, Episodes
from chameleon_policy.device import send
from chameleon_policy.policy import (
    EpisodeBatch,
    Features,
    InstructionEncoder,
    ObjectSlots,
    Observation,
    Statistics,
    View,
)
from chameleon_policy.train.sampling import (
    DECIDING,
    Emphasis,
    Steps,
    Timeline,
    balanced_pass,
    first_wait,
    recorded_timeline,
    step_kinds,
)

LARGEST_SHARE_OF_GPU = 0.5
"""Episodes are kept on the GPU if they need at most this share of its free memory."""


def features_of(
    episodes: Episodes, horizon: int, encoder: InstructionEncoder | None = None
) -> Features:
    """Return the features of a policy for a dataset."""
    slots = episodes.object_slots
    if not episodes.views and slots is None:
        raise ValueError(
            f"{episodes.source} has neither pictures nor object slots: a policy would see nothing. "
            "Name its keys with --view-keys or --objects-key"
        )
    return Features(
        views=tuple(
            View(name=name, height=size[0], width=size[1]) for name, size in episodes.views.items()
        ),
        objects=None if slots is None else ObjectSlots(count=slots[0], size=slots[1]),
        proprioception=episodes.state_size,
        action=episodes.action_size,
        horizon=horizon,
        language=encoder.feature if encoder else None,
    )


def check_fit(episodes: Episodes, features: Features, policy: str) -> None:
    """Raise a ValueError if a dataset has other cameras or dimensions than a policy's features.

    `policy` names the policy in the message.
    """
    found = features_of(episodes, features.horizon)
    pairs = {
        "views": (_views(features), _views(found)),
        "object slots": (features.objects, found.objects),
        "numbers of proprioception": (features.proprioception, found.proprioception),
        "numbers of an action": (features.action, found.action),
    }
    wrong = [
        f"{name}: {expected} in {policy}, {got} in the data"
        for name, (expected, got) in pairs.items()
        if expected != got
    ]
    if wrong:
        sides = {max(view.height, view.width) for view in features.views}
        hint = (
            f". Its pictures have another size: give --size {max(sides)}"
            if found.views != features.views
            and [view.name for view in found.views] == [view.name for view in features.views]
            else ""
        )
        raise ValueError(
            f"{episodes.source} does not fit the policy in {policy}. {'; '.join(wrong)}{hint}"
        )


def _views(features: Features) -> str:
    return (
        ", ".join(f"{view.name} {view.height} x {view.width}" for view in features.views) or "none"
    )


@dataclass(frozen=True)
class Decisions:
    """The decisions of one episode; empty where a dataset does not annotate them."""

    instruction: str
    steps: tuple[int, ...]
    """Time step of every decision."""
    answers: tuple[int, ...]


def padded_length(time: int, multiple: int) -> int:
    """Round a number of time steps up to one of few lengths.

    These are multiples of `multiple`, from 16 times `multiple` on multiples of twice as many steps,
    and so on. With a multiple of 1 every length remains as it is.
    """
    if multiple == 1:
        return time
    step = multiple << max(0, (time // (8 * multiple)).bit_length() - 1)
    return -(-time // step) * step


class EpisodeStore:
    """All episodes of a dataset in memory, ready to be batched."""

    def __init__(
        self,
        episodes: Sequence[EpisodeArrays],
        features: Features,
        statistics: Statistics,
        *,
        device: torch.device | str = "cpu",
        encoder: InstructionEncoder | None = None,
        resident: bool | None = None,
        multiple: int = 1,
        annotated_decisions: bool = False,
    ) -> None:
        """Join the episodes.

        Args:
            episodes: The episodes of a dataset.
            features: The features of the policy.
            statistics: The statistics of the policy.
            device: Device of the policy.
            encoder: Encoder of the instructions, if the policy reads them.
            resident: Whether to keep the episodes on a GPU; if they fit by default.
            multiple: Multiple of time steps to pad batches to (`padded_length`).
            annotated_decisions: Whether training knows the decisions from annotations, instead of
                finding them in the actions.
        """
        if not episodes:
            raise ValueError("expected at least one episode to train on, got none")
        self.features, self.multiple = features, multiple
        self.lengths = [episode.length for episode in episodes]
        self.decisions = [
            Decisions(episode.instruction, episode.decision_steps, episode.answers)
            for episode in episodes
        ]
        self._first = torch.tensor([0, *np.cumsum(self.lengths)[:-1].tolist()])

        assert statistics.action is not None
        span = np.subtract(statistics.action.high, statistics.action.low)
        kinds = [
            step_kinds(episode, features.horizon, span, annotated=annotated_decisions)
            for episode in episodes
        ]
        self.waits = [
            first_wait(episode, span, annotated=annotated_decisions) for episode in episodes
        ]
        """Time steps before the first decision of every episode."""
        self.any_deciding = any((kind == DECIDING).any() for kind in kinds)
        observation = _joined_observations(episodes, features)
        actions, kind = _joined([episode.actions for episode in episodes]), _joined(kinds)
        fields = [observation.proprioception, *observation.images.values(), actions, kind]
        fields += [] if observation.objects is None else [observation.objects]
        self.nbytes = sum(field.nbytes for field in fields)
        self.device = torch.device(device)
        self.resident = self.device.type == "cpu" or (
            self._fits_on_the_gpu() if resident is None else resident
        )
        """Whether the episodes lie on the device of the policy; otherwise every batch is copied."""
        home = self._home = self.device if self.resident else torch.device("cpu")
        self._observation = observation.to(home)
        self._actions, self._kind = actions.to(home), kind.to(home)
        self._instructions: Tensor | None = None
        if encoder is not None:
            self._instructions = (
                encoder.embed([episode.instruction for episode in episodes]).float().to(home)
            )

    def _fits_on_the_gpu(self) -> bool:
        free, _ = torch.cuda.mem_get_info(self.device)
        return self.nbytes <= LARGEST_SHARE_OF_GPU * free

    def __len__(self) -> int:
        return len(self.lengths)

    @cached_property
    def balanced_pass(self) -> list[int]:
        """Indices of the episodes of a pass with about equally many frames of every task."""
        return balanced_pass(self.lengths, [decisions.instruction for decisions in self.decisions])

    def batch(
        self,
        episodes: Sequence[int | Timeline],
        first: int = 0,
        window: int | None = None,
        emphasis: Emphasis | None = None,
    ) -> EpisodeBatch:
        """Return a padded batch of episodes, where the store keeps them.

        Args:
            episodes: Indices of episodes, or their timelines.
            first: Time step, or position in the timeline, at which the batch begins.
            window: Largest number of time steps; the longest episode decides by default.
            emphasis: Weights of moving, resting and deciding steps; all alike by default.
        """
        timelines = [
            recorded_timeline(episode, self.lengths[episode])
            if isinstance(episode, int)
            else episode
            for episode in episodes
        ]
        left = torch.tensor([len(timeline) for timeline in timelines]) - first
        assert int(left.min()) > 0, "an episode of the batch ends before the window begins"
        time = int(left.max()) if window is None else min(window, int(left.max()))
        time = padded_length(time, self.multiple)
        positions = np.arange(time + self.features.horizon - 1)
        rows, kind_rows = self._rows(timelines, first + positions)
        actions_valid = send(torch.from_numpy(positions) < left[:, None], self._home)
        valid, kind = actions_valid[:, :time], self._take(self._kind, kind_rows[:, :time])
        batch = EpisodeBatch(
            observation=replace(
                self._observation.map(lambda field: self._take(field, rows[:, :time])),
                instruction=self._instructions_of(timelines),
            ),
            actions=self._take(self._actions, rows),
            valid=valid,
            actions_valid=actions_valid,
            emphasis=None
            if emphasis is None
            else send(torch.tensor(emphasis), self._home)[kind.long()],
            deciding=(kind == DECIDING) & valid if self.any_deciding else None,
        )
        return batch if self.resident else batch.pin_memory()

    def _rows(self, timelines: Sequence[Timeline], positions: Steps) -> tuple[Tensor, Tensor]:
        """Return the rows of the fields at positions in timelines, and those of the kinds.

        After a timeline's end, its last step is repeated.
        """
        starts = self._first[[timeline.episode for timeline in timelines]][:, None]
        clipped = [np.minimum(positions, len(timeline) - 1) for timeline in timelines]
        pairs = list(zip(timelines, clipped, strict=True))
        steps = np.stack([timeline.steps[at] for timeline, at in pairs])
        kind_steps = np.stack([timeline.kind_steps[at] for timeline, at in pairs])
        return (
            send(starts + torch.from_numpy(steps), self._home),
            send(starts + torch.from_numpy(kind_steps), self._home),
        )

    def _instructions_of(self, timelines: Sequence[Timeline]) -> Tensor | None:
        if self._instructions is None:
            return None
        episodes = torch.tensor([timeline.episode for timeline in timelines])
        return self._take(self._instructions, send(episodes, self._home))

    def _take(self, field: Tensor, rows: Tensor) -> Tensor:
        """Return field[rows], copied row by row; in page-locked memory if it has to be sent."""
        shape = (rows.numel(), *field.shape[1:])
        taken = torch.empty(
            shape, dtype=field.dtype, device=field.device, pin_memory=not self.resident
        )
        torch.index_select(field, 0, rows.flatten(), out=taken)
        return taken.view(*rows.shape, *field.shape[1:])


def _joined_observations(episodes: Sequence[EpisodeArrays], features: Features) -> Observation:
    """Return the observations of all episodes, one after the other, without instructions."""
    return Observation(
        proprioception=_joined([episode.state for episode in episodes]),
        images={
            view.name: _joined([episode.images[view.name] for episode in episodes])
            for view in features.views
        },
        objects=None
        if features.objects is None
        else _joined([episode.objects for episode in episodes if episode.objects is not None]),
    )


def _joined(arrays: Sequence[np.ndarray]) -> Tensor:
    """Return arrays one after the other, without a copy if they lie in memory like that already."""
    whole, first = arrays[0].base, 0
    if not isinstance(whole, np.ndarray) or whole.dtype != arrays[0].dtype:
        return torch.from_numpy(np.concatenate(arrays))
    for array in arrays:
        part = whole[first : first + len(array)]
        if part.__array_interface__ != array.__array_interface__:
            return torch.from_numpy(np.concatenate(arrays))
        first += len(array)
    return torch.from_numpy(whole[:first])
