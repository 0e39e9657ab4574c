"""LeRobot's padded windows become a batch of episodes.

LeRobot cuts a window around every frame: `before` frames before it and some after it. Where the
window reaches over an end of its episode, the frame at that end is repeated, and `<key>_is_pad`
says so. Here rows are shifted so that what is real comes first, and the rest is masked: an
`EpisodeBatch` has its padding at the end.
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
    """A batch of windows, and where they lie in the dataset."""

    batch: EpisodeBatch
    places: list[tuple[int, int, int]] | None
    """Of every row the episode, its first real frame and the one behind its last, as the dataset
    counts all its frames. None where the dataset does not say.
    """
    begins: Tensor
    """B, whether a row begins where its episode does."""
    whole: list[bool]
    """Whether a row has no padding behind its last real frame: its memory after the window means
    something.
    """


def observation_of(
    batch: Mapping[str, Any], features: Features, views: Mapping[str, str]
) -> Observation:
    """What a policy sees, with or without a time axis; `views` has LeRobot's key of every view.
    Without the instruction.
    """
    needed = [STATE, *views.values(), *([OBJECTS] if features.objects else [])]
    missing = [key for key in needed if key not in batch]
    if missing:
        seen = ", ".join(key for key in batch if key.startswith("observation")) or "none"
        raise ValueError(
            f"expected the observations {', '.join(needed)}; missing: {', '.join(missing)}; got: {seen}. Rename them in the "
            "dataset (for cameras of a loaded policy, LeRobot's --rename_map does it)"
        )
    objects = None
    if features.objects is not None:
        objects = (
            batch[OBJECTS].float().unflatten(-1, (features.objects.count, features.objects.size))
        )
    return Observation(
        proprioception=batch[STATE].float(),
        # LeRobot has channels first.
        images={view: batch[key].movedim(-3, -1) for view, key in views.items()},
        objects=objects,
    )


def window_of(
    batch: Mapping[str, Any], features: Features, views: Mapping[str, str], before: int
) -> Window:
    """A batch of LeRobot's dataset, with observations from `before` frames ago on and actions from
    there on, too.
    """
    observation = observation_of(batch, features, views)
    padded, actions_padded = (_padding(batch, key) for key in (STATE, ACTION))
    skipped = _leading(padded)
    real, real_actions = (~padded).sum(1), (~actions_padded).sum(1)
    time = int(real.max())
    steps = torch.arange(time, device=skipped.device)
    # One action for every observation, and those that the last chunks reach; behind the window
    # there are none.
    ahead = torch.arange(
        min(time + features.horizon - 1, actions_padded.shape[1]), device=skipped.device
    )
    actions = batch[ACTION].float()
    window = EpisodeBatch(
        observation=observation.map(lambda tensor: _shifted(tensor, skipped, steps)),
        actions=_shifted(actions, skipped, ahead),
        valid=steps < real[:, None],
        actions_valid=ahead < real_actions[:, None],
    )
    begins = skipped > 0
    if "frame_index" in batch:
        begins |= batch["frame_index"].flatten().to(skipped.device) == before
    return Window(window, _places(batch, skipped, real, before), begins, (real == time).tolist())


def with_emphasis(
    window: Window, span: Sequence[float], horizon: int, rest: float | None
) -> EpisodeBatch:
    """The batch with its deciding time steps marked, and, where `rest` is given, waiting ones drawn
    so much less often.

    As in chameleon_policy.train.sampling for data that do not say where decisions are: the robot
    waits where no dimension of the action changes by more than a share of its `span`; it decides
    where it waits, but sets off within the horizon. What the robot did before a window that begins
    in the middle of an episode is not known: it is taken to move there.
    """
    batch = window.batch
    actions = batch.actions / torch.tensor(span, device=batch.actions.device).clamp(min=1e-6)
    time, last = batch.valid.shape[1], batch.actions.shape[1] - 1
    counted = batch.valid.sum(1) if batch.actions_valid is None else batch.actions_valid.sum(1)
    ends = (counted - 1)[:, None]
    now = torch.arange(time, device=actions.device)

    def at(steps: Tensor) -> Tensor:
        place = torch.minimum(steps.clamp(max=last), ends)
        return actions.gather(1, place.unsqueeze(-1).expand(-1, -1, actions.shape[-1]))

    here = at(now)
    still = (here - at((now - 1).clamp(min=0))).abs().amax(-1) <= STILL
    still[:, 0] &= window.begins
    leaves = torch.zeros_like(still)
    for step in range(1, horizon):
        leaves |= (at(now + step) - here).abs().amax(-1) > MOVED
    emphasis = None if rest is None else torch.where(still & ~leaves, rest, 1.0)
    return replace(batch, deciding=still & leaves & batch.valid, emphasis=emphasis)


def _padding(batch: Mapping[str, Any], key: str) -> Tensor:
    name = f"{key}_is_pad"
    if name not in batch or batch[name].dim() != 2:
        raise ValueError(
            f"{name}: expected a mask (batch, time), got {tuple(batch[name].shape) if name in batch else 'nothing'}. "
            "Training needs windows of a LeRobotDataset; let lerobot-train make them from this policy's delta indices"
        )
    mask: Tensor = batch[name].bool()
    return mask


def _leading(padded: Tensor) -> Tensor:
    """How many frames of padding stand in front, B."""
    return padded.long().cumprod(1).sum(1)


def _shifted(tensor: Tensor, skipped: Tensor, steps: Tensor) -> Tensor:
    """Rows (B T ...) from `skipped` on; behind their end, the last one again."""
    if not bool(skipped.any()):
        return tensor[:, : len(steps)]
    place = (skipped[:, None] + steps).clamp(max=tensor.shape[1] - 1)
    return tensor[torch.arange(len(tensor), device=tensor.device)[:, None], place]


def _places(
    batch: Mapping[str, Any], skipped: Tensor, real: Tensor, before: int
) -> list[tuple[int, int, int]] | None:
    if "index" not in batch or "episode_index" not in batch:
        return None
    first = batch["index"].flatten().to(skipped.device) - before + skipped
    episodes = batch["episode_index"].flatten().tolist()
    return list(zip(episodes, first.tolist(), (first + real).tolist(), strict=True))
