"""Batches of observations: what may be joined, and which robots came out well."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

import torch
from torch import Tensor

from chameleon_policy.policy import MemoryState, Observation


def image_types(observation: Observation) -> Hashable:
    """Return the types of all images; observations of other types are never joined."""
    return tuple(sorted((name, str(image.dtype)) for name, image in observation.images.items()))


def finite(memory: MemoryState) -> list[bool]:
    """Return for each robot whether all numbers of its memory are finite."""
    fine = torch.ones(len(memory), dtype=torch.bool, device=memory.working.device)
    for tensor in memory.tensors().values():
        if tensor.is_floating_point():
            # A sum is not finite if one of its numbers is not, and takes a thirtieth of the time of
            # isfinite(). It overflows as well where numbers of 1e33 are, which no memory holds.
            fine &= tensor.reshape(len(memory), -1).sum(1, dtype=torch.float32).isfinite()
    return fine.tolist()


def concatenate(observations: Sequence[Observation]) -> Observation:
    """Return one batch of several observations."""
    if len(observations) == 1:
        return observations[0]

    def cat(tensors: Iterable[Tensor | None]) -> Tensor:
        return torch.cat([tensor for tensor in tensors if tensor is not None])

    first = observations[0]
    return Observation(
        proprioception=cat(each.proprioception for each in observations),
        images={name: cat(each.images[name] for each in observations) for name in first.images},
        objects=None if first.objects is None else cat(each.objects for each in observations),
        instruction=None
        if first.instruction is None
        else cat(each.instruction for each in observations),
    )
