"""Episodes in memory, and batches of them: decoded once, kept as uint8, on the GPU when they fit.

Every key is one tensor with the episodes one behind the other; a batch is one indexed read of it.
Behind an episode's end its last frame is repeated and masked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from chameleon_policy.data.episodes import EpisodeArrays, Episodes
from chameleon_policy.device import sent
from chameleon_policy.policy import (
    EpisodeBatch,
    Features,
    InstructionEncoder,
    ObjectSlots,
    Observation,
    Statistics,
    View,
)
from chameleon_policy.train.appearance import Appearance, Mirror, tinted, warped
from chameleon_policy.train.moments import DECIDING, moments
from chameleon_policy.train.order import equal_frames
from chameleon_policy.train.timeline import Rows, Timeline, as_it_was

Emphasis = tuple[float, float, float]

LARGEST_SHARE_OF_GPU = 0.5
"""Data move to the GPU if they need at most this share of its free memory."""


def features_of(
    episodes: Episodes, horizon: int, encoder: InstructionEncoder | None = None
) -> Features:
    """What a policy must know of a dataset."""
    slots = episodes.object_slots
    if not episodes.views and slots is None:
        raise ValueError(
            f"{episodes.source} has neither pictures nor object slots: a policy would see nothing. Name its keys with "
            "--view-keys or --objects-key"
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


def check_fit(episodes: Episodes, features: Features, where: object) -> None:
    """ValueError if a dataset has other cameras or dimensions than the policy saved at `where`."""
    there = features_of(episodes, features.horizon)
    pairs = {
        "views": (_views(features), _views(there)),
        "object slots": (features.objects, there.objects),
        "numbers of proprioception": (features.proprioception, there.proprioception),
        "numbers of an action": (features.action, there.action),
    }
    wrong = [
        f"{name}: {expected} in {where}, {got} in the data"
        for name, (expected, got) in pairs.items()
        if expected != got
    ]
    if wrong:
        raise ValueError(
            f"{episodes.source} does not fit the policy in {where}. {'; '.join(wrong)}"
        )


def _views(features: Features) -> str:
    return (
        ", ".join(f"{view.name} {view.height} x {view.width}" for view in features.views) or "none"
    )


@dataclass(frozen=True, eq=False)
class _Rows:
    """Everything that has one row per time step, all episodes one behind the other."""

    observation: Observation
    actions: Tensor
    moment: Tensor

    def tensors(self) -> list[Tensor]:
        objects = [] if self.observation.objects is None else [self.observation.objects]
        return [
            self.observation.proprioception,
            *self.observation.images.values(),
            *objects,
            self.actions,
            self.moment,
        ]


@dataclass(frozen=True)
class Decisions:
    """When an episode asks for decisions, and what for; empty where a dataset does not say."""

    instruction: str
    steps: tuple[int, ...]
    answers: tuple[int, ...]


def padded_length(time: int, multiple: int) -> int:
    """The next of a few lengths: multiples of this many steps, from 16 times as many on multiples
    of twice as many, and so on. Where `multiple` is 1, every length is one of them.
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
        mirror: Mirror | None = None,
    ) -> None:
        if not episodes:
            raise ValueError("expected at least one episode to train on, got none")
        self.features, self.multiple = features, multiple
        self.lengths = [episode.length for episode in episodes]
        self.decisions = [
            Decisions(episode.instruction, episode.decision_steps, episode.answers)
            for episode in episodes
        ]
        self._first = torch.tensor([0, *np.cumsum(self.lengths)[:-1].tolist()])

        def joined(arrays: list[np.ndarray]) -> Tensor:
            return torch.from_numpy(np.concatenate(arrays))

        assert statistics.action is not None
        span = np.subtract(statistics.action.high, statistics.action.low)
        kinds = [moments(episode, features.horizon, span) for episode in episodes]
        self.any_deciding = any((kind == DECIDING).any() for kind in kinds)
        rows = _Rows(
            Observation(
                proprioception=joined([episode.state for episode in episodes]),
                images={
                    view.name: joined([episode.images[view.name] for episode in episodes])
                    for view in features.views
                },
                objects=None
                if features.objects is None
                else joined(
                    [episode.objects for episode in episodes if episode.objects is not None]
                ),
            ),
            actions=joined([episode.actions for episode in episodes]),
            moment=joined(kinds),
        )
        self.nbytes = sum(tensor.nbytes for tensor in rows.tensors())
        self.device = torch.device(device)
        self.resident = self.device.type == "cpu" or (
            self._fits_on_the_gpu() if resident is None else resident
        )
        """Whether the data lie where the policy computes; otherwise every batch is copied there."""
        home = self._home = self.device if self.resident else torch.device("cpu")
        self._rows = _Rows(rows.observation.to(home), rows.actions.to(home), rows.moment.to(home))
        self._signs = None
        if mirror is not None:
            self._signs = tuple(
                torch.tensor(signs).to(self.device) for signs in (mirror.state, mirror.action)
            )
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
    def pass_of_equal_frames(self) -> list[int]:
        """Numbers of the episodes of a pass in which every task has about as many frames."""
        return equal_frames(self.lengths, [each.instruction for each in self.decisions])

    def batch(
        self,
        chosen: Sequence[int | Timeline],
        first: int = 0,
        window: int | None = None,
        emphasis: Emphasis | None = None,
    ) -> EpisodeBatch:
        """Episodes, by number or at the pace at which they are to be shown, from their time step
        `first` on and at most `window` long; the longest decides the length. They look as they
        were: see `dressed`.

        `emphasis` says how often moving, resting and deciding steps carry the action loss, relative
        to one another.
        """
        shown = [
            as_it_was(each, self.lengths[each]) if isinstance(each, int) else each
            for each in chosen
        ]
        rows, place = self._rows, torch.tensor([each.episode for each in shown])
        left = torch.tensor([len(each) for each in shown]) - first
        assert int(left.min()) > 0, "an episode that is over before the window has no place in it"
        time = int(left.max()) if window is None else min(window, int(left.max()))
        time = padded_length(time, self.multiple)
        steps = np.arange(time + self.features.horizon - 1)
        # behind its end, the last step again
        within = [np.minimum(first + steps, len(each) - 1) for each in shown]

        def places(rows: list[Rows]) -> Tensor:
            return sent(self._first[place][:, None] + torch.from_numpy(np.stack(rows)), self._home)

        index = places([each.rows[now] for each, now in zip(shown, within, strict=True)])
        valid = sent(torch.from_numpy(steps) < left[:, None], self._home)
        kinds = places([each.kinds[now] for each, now in zip(shown, within, strict=True)])
        moment = self._take(rows.moment, kinds[:, :time])
        seen = index[:, :time]
        batch = EpisodeBatch(
            observation=Observation(
                proprioception=self._take(rows.observation.proprioception, seen),
                images={
                    name: self._take(frames, seen)
                    for name, frames in rows.observation.images.items()
                },
                objects=None
                if rows.observation.objects is None
                else self._take(rows.observation.objects, seen),
                instruction=None
                if self._instructions is None
                else self._take(self._instructions, sent(place, self._home)),
            ),
            actions=self._take(rows.actions, index),
            valid=valid[:, :time],
            actions_valid=valid,
            emphasis=None
            if emphasis is None
            else sent(torch.tensor(emphasis), self._home)[moment.long()],
            deciding=(moment == DECIDING) & valid[:, :time] if self.any_deciding else None,
        )
        return batch if self.resident else batch.pin_memory()

    def dressed(self, batch: EpisodeBatch, looks: Sequence[Appearance]) -> EpisodeBatch:
        """A batch that has arrived where the policy computes, with its episodes looking as they are
        to look; some of its tensors may be changed in place.
        """
        tints, warps = [each.tint for each in looks], [each.warp for each in looks]
        images = {
            name: warped(tinted(frames, tints), warps)
            for name, frames in batch.observation.images.items()
        }
        mirrored = [row for row, each in enumerate(looks) if each.mirrored]
        if mirrored:
            self._reflect(sent(torch.tensor(mirrored), self.device), batch, images)
        return replace(batch, observation=replace(batch.observation, images=images))

    def _reflect(self, chosen: Tensor, batch: EpisodeBatch, images: dict[str, Tensor]) -> None:
        """Put the chosen episodes of a batch into the mirror, in place."""
        assert self._signs is not None, "without knowledge of the robot there is no mirror"
        for numbers, signs in zip(
            (batch.observation.proprioception, batch.actions), self._signs, strict=True
        ):
            numbers.index_copy_(0, chosen, numbers.index_select(0, chosen) * signs)
        for frames in images.values():
            frames.index_copy_(0, chosen, frames.index_select(0, chosen).flip(3))

    def _take(self, rows: Tensor, index: Tensor) -> Tensor:
        """rows[index], copied row by row; into page-locked memory if it has to travel."""
        shape = (index.numel(), *rows.shape[1:])
        taken = torch.empty(
            shape, dtype=rows.dtype, device=rows.device, pin_memory=not self.resident
        )
        torch.index_select(rows, 0, index.flatten(), out=taken)
        return taken.view(*index.shape, *rows.shape[1:])
