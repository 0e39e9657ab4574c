"""Methods whose context is a window of the last few frames.

Before an episode's first frame a window holds copies of that frame, as in Diffusion Policy.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from chameleon_policy.baselines.frame_summary import FrameSummary
from chameleon_policy.policy import Augmentation, EpisodeBatch, MemoryState, Observation
from chameleon_policy.policy.state import Memory, named_memory
from chameleon_policy.policy.targets import Moments, Targets, draw_moments
from chameleon_policy.policy.visuomotor import Remembered, VisuomotorPolicy


class WindowPolicy(VisuomotorPolicy):
    """A policy whose context is the last `frames` frames: B T frames ..., the newest last.

    It has no head (`_errors`, `_sample`): combine it with a class that does, such as `FlowPolicy`.
    """

    frames: ClassVar[int]
    carries_memory: ClassVar[bool] = False

    def _frame(self, tokens: Tensor) -> Tensor:
        """Compute the entry of each frame in the window (B T ...) from event tokens (B T N D)."""
        return tokens

    @property
    def _frame_shape(self) -> tuple[int, ...]:
        return (self.features.tokens, self.config.width)

    @property
    def _context_shape(self) -> tuple[int, ...]:
        return (self.frames, *self._frame_shape)

    def _initial_memory(self, batch_size: int) -> Memory:
        if self.frames == 1:
            return ()
        shape = (batch_size, self.frames - 1, *self._frame_shape)
        return ({"frames": torch.zeros(shape, dtype=self._precision, device=self.device)},)

    def _remember(
        self, tokens: Tensor, memory: Memory | None, steps: Tensor | None, *, keep: bool
    ) -> Remembered:
        new = self._frame(tokens)
        if self.frames == 1:
            return Remembered(new.unsqueeze(2), ())
        before = new[:, :1].expand(-1, self.frames - 1, *self._frame_shape)
        if memory is not None and steps is not None:
            started = (steps > 0).view(-1, *[1] * (new.dim() - 1))
            before = torch.where(started, named_memory(memory)["frames"].to(new.dtype), before)
        frames = torch.cat([before, new], dim=1)
        windows = frames.unfold(1, self.frames, 1).movedim(-1, 2)
        last = frames[:, 1 - self.frames :].to(self._precision, copy=True)
        return Remembered(windows, ({"frames": last},) if keep else None)

    def _losses(
        self,
        batch: EpisodeBatch,
        state: MemoryState | None,
        augmentation: Augmentation | None,
        keep_state: bool,
    ) -> tuple[Tensor, dict[str, Tensor], MemoryState | None]:
        if state is not None:
            raise ValueError(
                f"{self.method} carries no memory from window to window: leave out `state`"
            )
        drawn = self.config.objective.action_steps
        if drawn is None or drawn * self.frames >= batch.valid.shape[1]:
            return super()._losses(batch, state, augmentation, keep_state=False)
        # The drawn moments need fewer frames than the episodes have: encode only those.
        moments = draw_moments(batch, drawn)
        observation = frames_before(batch.observation, moments, self.frames)
        tokens = self.event_tokens(observation, augmentation)
        context = self._frame(tokens).unflatten(1, (drawn, self.frames))
        targets = Targets.of(batch, self.features, self.normalize_action, self._precision).at(
            moments
        )
        return *self._head_loss(context.flatten(0, 1), targets), None


class SummaryWindowPolicy(WindowPolicy):
    """A window with one vector per frame."""

    summary: FrameSummary

    def _frame(self, tokens: Tensor) -> Tensor:
        return self.summary(tokens)

    @property
    def _frame_shape(self) -> tuple[int, ...]:
        return (self.config.width,)


def frames_before(observation: Observation, moments: Moments, frames: int) -> Observation:
    """Return the last frames up to every moment (B S) as S x frames time steps."""
    episode, step = moments
    ages = torch.arange(frames - 1, -1, -1, device=step.device)
    steps = (step.unsqueeze(-1) - ages).clamp(min=0).flatten(1)
    return observation.map(lambda tensor: tensor[episode, steps])
