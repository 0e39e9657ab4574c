"""LeRobot's padded windows as a batch of episodes.

LeRobot cuts a window around every frame: `before` frames before it and some after it. Where the
window crosses an end of its episode, the frame at that end is repeated, and `<key>_is_pad` marks
it. Rows are shifted here so that real frames come first, and padding is masked: an `EpisodeBatch`
has its padding at the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from chameleon_policy.policy import EpisodeBatch, Features, Observation
from chameleon_policy.train.sampling import MOVED, STILL

STATE, OBJECTS, ACTION = "observation.state", "observation.environment_state", "action"


@dataclass(frozen=True, eq=False)
class Window:
    """A batch of windows, and their location in the dataset."""

    batch: EpisodeBatch
    spans: list[tuple[int, int, int]] | None
    """Of each row: its episode, its first real frame, and the frame after its last one, counted
    over the dataset. None where the dataset does not say.
    """
    begins: Tensor
    """Whether a row begins with its episode, B."""
    whole: list[bool]
    """Whether a row has no padding after its last real frame, so that its memory is meaningful."""


def observation_of(
    batch: Mapping[str, Any], features: Features, views: Mapping[str, str]
) -> Observation:
    """Return the observation, with or without a time axis, and without the instruction.

    `views` has LeRobot's key of every view.
    """
    needed = [STATE, *views.values(), *([OBJECTS] if features.objects else [])]
    missing = [key for key in needed if key not in batch]
    if missing:
        given = ", ".join(key for key in batch if key.startswith("observation")) or "none"
        raise ValueError(
            f"expected the observations {', '.join(needed)}; missing: {', '.join(missing)}; got: "
            f"{given}. Rename them in the dataset (for cameras of a loaded policy, LeRobot's "
            "--rename_map does it)"
        )
    objects = None
    if features.objects is not None:
        objects = (
            batch[OBJECTS].float().unflatten(-1, (features.objects.count, features.objects.size))
        )
    return Observation(
        proprioception=batch[STATE].float(),
        # LeRobot's images have channels first
        images={view: batch[key].movedim(-3, -1) for view, key in views.items()},
        objects=objects,
    )


def window_of(
    batch: Mapping[str, Any], features: Features, views: Mapping[str, str], before: int
) -> Window:
    """Return the windows of a batch whose observations and actions begin `before` frames ago."""
    observation = observation_of(batch, features, views)
    padded, actions_padded = (_padding(batch, key) for key in (STATE, ACTION))
    skipped = _count_leading(padded)
    real, real_actions = (~padded).sum(1), (~actions_padded).sum(1)
    time = int(real.max())
    steps = torch.arange(time, device=skipped.device)
    # one action for every observation, and the rest of the last chunk
    ahead = torch.arange(
        min(time + features.horizon - 1, actions_padded.shape[1]), device=skipped.device
    )
    actions = batch[ACTION].float()
    window = EpisodeBatch(
        observation=observation.map(lambda tensor: _shift(tensor, skipped, steps)),
        actions=_shift(actions, skipped, ahead),
        valid=steps < real[:, None],
        actions_valid=ahead < real_actions[:, None],
    )
    begins = skipped > 0
    if "frame_index" in batch:
        begins |= batch["frame_index"].flatten().to(skipped.device) == before
    return Window(window, _spans(batch, skipped, real, before), begins, (real == time).tolist())


def with_emphasis(
    window: Window, span: Sequence[float], horizon: int, rest: float | None
) -> EpisodeBatch:
    """Return the batch with deciding time steps marked; `rest` is the emphasis of waiting ones.

    As in chameleon_policy.train.sampling for data without annotated decisions: the robot waits
    where no dimension of the action changes by more than a share of its `span`; it decides where it
    waits but moves within the horizon. At the beginning of a window in the middle of an episode it
    counts as moving.
    """
    batch = window.batch
    actions = batch.actions / torch.tensor(span, device=batch.actions.device).clamp(min=1e-6)
    time, last = batch.valid.shape[1], batch.actions.shape[1] - 1
    counted = batch.valid.sum(1) if batch.actions_valid is None else batch.actions_valid.sum(1)
    ends = (counted - 1)[:, None]
    now = torch.arange(time, device=actions.device)

    def at(steps: Tensor) -> Tensor:
        index = torch.minimum(steps.clamp(max=last), ends)
        return actions.gather(1, index.unsqueeze(-1).expand(-1, -1, actions.shape[-1]))

    present = at(now)
    still = (present - at((now - 1).clamp(min=0))).abs().amax(-1) <= STILL
    still[:, 0] &= window.begins
    leaves = torch.zeros_like(still)
    for step in range(1, horizon):
        leaves |= (at(now + step) - present).abs().amax(-1) > MOVED
    emphasis = None if rest is None else torch.where(still & ~leaves, rest, 1.0)
    return replace(batch, deciding=still & leaves & batch.valid, emphasis=emphasis)


def _padding(batch: Mapping[str, Any], key: str) -> Tensor:
    name = f"{key}_is_pad"
    if name not in batch or batch[name].dim() != 2:
        got = tuple(batch[name].shape) if name in batch else "nothing"
        raise ValueError(
            f"{name}: expected a mask (batch, time), got {got}. Training needs windows of a "
            "LeRobotDataset; let lerobot-train make them from this policy's delta indices"
        )
    mask: Tensor = batch[name].bool()
    return mask


def _count_leading(padded: Tensor) -> Tensor:
    """Return the number of padded frames at the beginning of each row, B."""
    return padded.long().cumprod(1).sum(1)


def _shift(tensor: Tensor, skipped: Tensor, steps: Tensor) -> Tensor:
    """Return rows (B T ...) from `skipped` on, with their last entry repeated at the end."""
    if not bool(skipped.any()):
        return tensor[:, : len(steps)]
    index = (skipped[:, None] + steps).clamp(max=tensor.shape[1] - 1)
    return tensor[torch.arange(len(tensor), device=tensor.device)[:, None], index]


def _spans(
    batch: Mapping[str, Any], skipped: Tensor, real: Tensor, before: int
) -> list[tuple[int, int, int]] | None:
    if "index" not in batch or "episode_index" not in batch:
        return None
    first = batch["index"].flatten().to(skipped.device) - before + skipped
    episodes = batch["episode_index"].flatten().tolist()
    return list(zip(episodes, first.tolist(), (first + real).tolist(), strict=True))
