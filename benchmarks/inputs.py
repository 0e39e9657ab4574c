"""Make random inputs for timings and tests."""

from __future__ import annotations

import torch

from chameleon_policy import Features, Observation


def random_observation(
    features: Features,
    leading: tuple[int, ...],
    generator: torch.Generator,
    dtype: torch.dtype = torch.float32,
) -> Observation:
    """Make a random observation; `leading` is (batch,) or (batch, time)."""

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=dtype)

    language, objects = features.language, features.objects
    return Observation(
        proprioception=normal(*leading, features.proprioception),
        images={
            view.name: torch.randint(
                256, (*leading, view.height, view.width, 3), generator=generator, dtype=torch.uint8
            )
            for view in features.views
        },
        objects=normal(*leading, objects.count, objects.size) if objects else None,
        instruction=normal(leading[0], language.width) if language else None,
    )
