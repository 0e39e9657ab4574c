"""The targets of a head: chunks of actions, the positions that count, and their mean error."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from chameleon_policy.policy.features import Features
from chameleon_policy.policy.normalizer import Normalizer
from chameleon_policy.policy.observation import EpisodeBatch

Moments = tuple[Tensor, Tensor]
"""Episode (B 1) and time step (B S): an index into tensors that begin with B T."""


def draw_moments(batch: EpisodeBatch, count: int | None) -> Moments:
    """Draw the time steps that carry the action loss: `count` per episode, or all of them.

    The batch's emphasis weights the draw.
    """
    episodes, time = batch.valid.shape
    episode = torch.arange(episodes, device=batch.valid.device).unsqueeze(1)
    if count is None:
        return episode, torch.arange(time, device=batch.valid.device).expand(episodes, -1)
    weights = batch.valid if batch.emphasis is None else batch.emphasis * batch.valid
    return episode, torch.multinomial(weights.float(), count, replacement=True)


@dataclass(frozen=True, eq=False)
class Targets:
    """Chunks of normalised actions; leading dimensions B T, or M chosen moments."""

    chunks: Tensor
    """... H A."""
    counted: Tensor
    """... H, True where the position is before the episode's end."""
    deciding: Tensor | None
    """..., True where the robot is about to decide."""

    @classmethod
    def of(
        cls, batch: EpisodeBatch, features: Features, normalize: Normalizer, dtype: torch.dtype
    ) -> Targets:
        """Make the chunk of every time step."""
        horizon, time = features.horizon, batch.valid.shape[1]
        missing = max(0, time + horizon - 1 - batch.actions.shape[1])
        actions_valid = batch.valid if batch.actions_valid is None else batch.actions_valid
        # After an episode's last action the chunks repeat it; these positions do not count.
        step = torch.arange(batch.actions.shape[1] + missing, device=batch.actions.device)
        step = torch.minimum(step, actions_valid.sum(1, keepdim=True) - 1)
        actions = batch.actions.gather(1, step.unsqueeze(-1).expand(-1, -1, features.action))
        actions = normalize(actions).to(dtype)
        actions_valid = nn.functional.pad(actions_valid, (0, missing))
        chunks = actions.unfold(1, horizon, 1)[:, :time].transpose(-1, -2)
        counted = actions_valid.unfold(1, horizon, 1)[:, :time] & batch.valid.unsqueeze(-1)
        return cls(chunks, counted, batch.deciding)

    def at(self, moments: Moments) -> Targets:
        """Select B x S moments and flatten them (M = B S)."""
        deciding = None if self.deciding is None else self.deciding[moments].flatten()
        return Targets(
            self.chunks[moments].flatten(0, 1), self.counted[moments].flatten(0, 1), deciding
        )

    def means(self, errors: Tensor) -> tuple[Tensor, Tensor | None]:
        """Average errors (M H A) over the positions that count.

        Returns the action loss and, detached, that of the deciding moments alone.
        """
        weight = self.counted.unsqueeze(-1).to(errors.dtype)
        errors = errors * weight
        size = errors.shape[-1]
        action = errors.sum() / (weight.sum() * size).clamp(min=1)
        if self.deciding is None:
            return action, None
        deciding = self.deciding[:, None, None]
        return action, (errors.detach() * deciding).sum() / ((weight * deciding).sum() * size)
