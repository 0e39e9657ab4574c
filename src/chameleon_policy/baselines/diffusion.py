"""Diffusion Policy: the last two observations, and a network that takes noise off a chunk of
actions (Chi et al., 2023).

Trained as a DDPM of 100 noise levels; a chunk is sampled by DDIM in as many steps or fewer, from
pure noise on. Both schedules are those of the `diffusers` package. The two variants differ in the
network: a transformer, and a U-Net over time.

The original predicts the noise. At our sizes and in our few thousand steps, predicting the clean
chunk, as Chameleon's head does, is several times more accurate (LOG.md), so that is what both do
here.
"""

from __future__ import annotations

from functools import cache
from typing import Any, ClassVar

import torch
from torch import Tensor

from chameleon_policy.baselines.window import WindowPolicy
from chameleon_policy.policy import MemoryState
from chameleon_policy.policy.sampling import Source, starting_chunk
from chameleon_policy.policy.targets import Targets
from chameleon_policy.policy.visuomotor import Terms

NOISE_LEVELS = 100
SCHEDULE: dict[str, Any] = {
    "num_train_timesteps": NOISE_LEVELS,
    "beta_schedule": "squaredcos_cap_v2",
    "prediction_type": "sample",
    # Actions have unit variance (train/statistics.py), not a range of [-1, 1]: a limit of 1 would
    # cut off the movements.
    "clip_sample": False,
}


class DiffusionPolicy(WindowPolicy):
    """What both variants share: two frames, the noise, and the way back from it."""

    frames: ClassVar[int] = 2
    few_steps: ClassVar[int] = 10

    def __init__(self, *arguments: Any) -> None:
        self.check_requirements()
        super().__init__(*arguments)

    @classmethod
    def check_requirements(cls) -> None:
        """diffusers."""
        _diffusers()

    def _denoised(self, noised: Tensor, level: Tensor, condition: Tensor) -> Tensor:
        """The clean chunks (M H A) in those of noise levels (M), for conditions (M ...)."""
        raise NotImplementedError

    def _errors(self, context: Tensor, targets: Targets) -> tuple[Tensor, Terms]:
        chunks = targets.chunks
        noise = torch.randn_like(chunks)
        level = torch.randint(NOISE_LEVELS, (len(chunks),), device=chunks.device)
        predicted = self._denoised(
            _ddpm().add_noise(chunks, noise, level), level, self._condition(context)
        )
        return (predicted.to(chunks.dtype) - chunks).square(), Terms()

    def _sample(
        self,
        state: MemoryState,
        steps: int,
        source: Source | Tensor,
        generator: torch.Generator | None,
    ) -> Tensor:
        context = state.working.to(self._precision)
        shape = (context.shape[0], self.features.horizon, self.features.action)
        chunk = starting_chunk(shape, context, steps, source, generator)
        if steps > NOISE_LEVELS:
            raise ValueError(
                f"steps: {self.method} has {NOISE_LEVELS} noise levels; ask for no more steps, got {steps}"
            )
        condition, (schedule, levels_in_turn) = self._condition(context), _ddim(steps)
        for level in levels_in_turn:
            levels = torch.full((chunk.shape[0],), level, device=chunk.device)
            chunk = schedule.step(
                self._denoised(chunk, levels, condition), level, chunk
            ).prev_sample
        return chunk


@cache
def _ddpm() -> Any:
    """The noise of the training."""
    return _diffusers().DDPMScheduler(**SCHEDULE)


@cache
def _ddim(steps: int) -> tuple[Any, list[int]]:
    """The way back in so many steps, which keeps nothing from call to call, and its noise levels,
    plain numbers.
    """
    schedule = _diffusers().DDIMScheduler(**SCHEDULE, timestep_spacing="trailing")
    schedule.set_timesteps(steps)
    return schedule, schedule.timesteps.tolist()


def _diffusers() -> Any:
    try:
        from diffusers import schedulers
    except ImportError as error:
        raise ImportError(
            "Diffusion Policy needs: pip install 'chameleon-policy[baselines]'"
        ) from error
    return schedulers
