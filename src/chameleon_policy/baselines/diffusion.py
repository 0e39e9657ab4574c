"""Diffusion Policy: denoise a chunk of actions given the last two observations (Chi et al., 2023).

Training is DDPM with 100 noise levels; sampling is DDIM in at most 100 steps, from pure noise.
Both schedules are those of the `diffusers` package. The two variants differ in the network: a
transformer, and a U-Net over time.

The original predicts the noise. At our sizes and numbers of training steps, predicting the clean
chunk, as Chameleon's head does, is several times more accurate (docs/log), so both variants do so.
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
    # Actions have unit variance (train/normalization.py): clipping to [-1, 1] would cut movements.
    "clip_sample": False,
}


class DiffusionPolicy(WindowPolicy):
    """The common part of both variants: two frames, the noise, and the sampler."""

    frames: ClassVar[int] = 2
    few_steps: ClassVar[int] = 10

    def __init__(self, *arguments: Any) -> None:
        self.check_requirements()
        super().__init__(*arguments)

    @classmethod
    def check_requirements(cls) -> None:
        """Raise an ImportError if diffusers is not installed."""
        _diffusers()

    def _denoised(self, noised: Tensor, level: Tensor, condition: Tensor) -> Tensor:
        """Predict clean chunks (M H A) from noised ones, levels (M) and conditions (M ...)."""
        raise NotImplementedError

    def _errors(self, context: Tensor, targets: Targets) -> tuple[Tensor, Terms]:
        chunks = targets.chunks
        noise = torch.randn_like(chunks)
        level = torch.randint(NOISE_LEVELS, (len(chunks),), device=chunks.device)
        noised = _ddpm().add_noise(chunks, noise, level)
        predicted = self._denoised(noised, level, self._condition(context))
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
                f"steps: {self.method} has {NOISE_LEVELS} noise levels and takes at most as many "
                f"steps, got {steps}"
            )
        condition, (schedule, noise_levels) = self._condition(context), _ddim(steps)
        for level in noise_levels:
            levels = torch.full((chunk.shape[0],), level, device=chunk.device)
            clean = self._denoised(chunk, levels, condition)
            chunk = schedule.step(clean, level, chunk).prev_sample
        return chunk


@cache
def _ddpm() -> Any:
    """Return the noise schedule of training."""
    return _diffusers().DDPMScheduler(**SCHEDULE)


@cache
def _ddim(steps: int) -> tuple[Any, list[int]]:
    """Return the schedule for sampling in `steps` steps, which has no state, and its levels."""
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
