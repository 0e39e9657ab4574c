"""Embodied event tokens: one moment, written as a set of tokens.

| symbol | name here                | shape     | equation |
|--------|--------------------------|-----------|----------|
| X_t^v  | patch tokens of view v   | B T N_v D | 2        |
| p_t    | proprioception token     | B T D     | 3        |
| q_t    | language token           | B T D     | 3        |
| Z_t^0  | event tokens             | B T N D   | 4        |

Decisions
- Object slots (state observations) become tokens in the position of the patches. Each slot has a
  range of its own; a row of zeros is an absent object and stays zero.
- Every patch and object token has a learned embedding of its slot: one per object, and per view one
  for each row and one for each column of the patch grid. Proprioception and language have
  projections of their own and need none.
- A training crop is drawn once per episode and view: a crop that changes in time would destroy
  motion.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from chameleon_policy.policy.checkpointing import run_layer
from chameleon_policy.policy.config import PolicyConfig
from chameleon_policy.policy.features import Features, View
from chameleon_policy.policy.normalizer import Normalizer, Statistics
from chameleon_policy.policy.observation import Augmentation, Observation
from chameleon_policy.policy.visual import PatchEncoder

SLOT_EMBEDDING_STD = 1.0


class SlotEmbedding(nn.Module):
    """Embedding of a patch's position in the grid of its view: one per row plus one per column."""

    def __init__(self, view: View, width: int) -> None:
        super().__init__()
        rows, columns = view.grid
        self.rows = nn.Parameter(SLOT_EMBEDDING_STD * torch.randn(rows, 1, width))
        self.columns = nn.Parameter(SLOT_EMBEDDING_STD * torch.randn(1, columns, width))

    def forward(self) -> Tensor:
        """Return the embeddings of all patches (N_v D)."""
        return (self.rows + self.columns).flatten(0, 1)


class EventTokens(nn.Module):
    """Phi_evt of Eq. 1: an observation becomes Z_t^0 = [X_1 .. X_V, objects, p, q]."""

    def __init__(self, config: PolicyConfig, features: Features, statistics: Statistics) -> None:
        super().__init__()
        self.features = features
        self.forget_activations = False
        self.noise = config.objective.proprioception_noise
        width = config.width
        self.encoders = nn.ModuleList(PatchEncoder(config, view) for view in features.views)
        self.slots = nn.ModuleList(SlotEmbedding(view, width) for view in features.views)
        self.objects: nn.Linear | None = None
        if features.objects is not None:
            self.objects = nn.Linear(features.objects.size, width)
            count, size = features.objects.count, features.objects.size
            self.object_slots = nn.Parameter(SLOT_EMBEDDING_STD * torch.randn(count, width))
            self.normalize_objects = Normalizer(count * size, statistics.objects, "objects")
        elif statistics.objects is not None:
            raise ValueError("statistics.objects: the features have no objects; leave them out")
        self.proprioception = nn.Linear(features.proprioception, width)
        self.normalize_proprioception = Normalizer(
            features.proprioception, statistics.proprioception, "proprioception"
        )
        self.language: nn.Linear | None = None
        if features.language is not None:
            self.language = nn.Linear(features.language.width, width)
        else:
            self.null_instruction = nn.Parameter(SLOT_EMBEDDING_STD * torch.randn(width))

    def draw_augmentation(self, batch_size: int) -> Augmentation:
        """Draw crop positions and proprioceptive offsets for `batch_size` episodes."""
        weight = self.proprioception.weight
        crop = torch.rand(batch_size, len(self.features.views), 2, device=weight.device)
        noise = torch.randn(
            batch_size, self.features.proprioception, dtype=weight.dtype, device=weight.device
        )
        return Augmentation(crop=crop, proprioception_offset=self.noise * noise)

    def forward(self, observation: Observation, augmentation: Augmentation | None = None) -> Tensor:
        """Encode an observation with a time axis as event tokens (B T N D).

        Without an augmentation, crops are centred and proprioception has no noise.
        """
        weight = self.proprioception.weight
        if augmentation is not None and len(augmentation.crop) != len(observation.proprioception):
            raise ValueError(
                f"augmentation: it was drawn for {len(augmentation.crop)} episodes, the batch has "
                f"{len(observation.proprioception)}; draw one with policy.draw_augmentation"
            )
        batch, time = observation.proprioception.shape[:2]
        tokens = self._patches(observation, augmentation)
        if self.objects is not None and observation.objects is not None:
            objects = self._normalized(observation.objects).to(weight.dtype)
            tokens.append(self.objects(objects) + self.object_slots)
        body = self.normalize_proprioception(observation.proprioception).to(weight.dtype)
        if augmentation is not None:
            body = body + augmentation.proprioception_offset[:, None]
            body = body + self.noise * torch.randn_like(body)
        tokens.append(self.proprioception(body).unsqueeze(2))
        if self.language is not None and observation.instruction is not None:
            instruction = self.language(observation.instruction.to(weight.dtype))[:, None]
        else:
            instruction = self.null_instruction
        instruction = instruction.expand(batch, time, -1).unsqueeze(2).to(tokens[-1].dtype)
        tokens.append(instruction.contiguous())  # concatenation is fast on contiguous parts
        return torch.cat(tokens, dim=2)

    def _patches(self, observation: Observation, augmentation: Augmentation | None) -> list[Tensor]:
        """Encode every view as X_t^v (B T N_v D), each patch with its slot embedding."""
        patches = []
        for index, view in enumerate(self.features.views):
            images = observation.images[view.name]
            position = None if augmentation is None else augmentation.crop[:, index]
            encoder, slots = self.encoders[index], self.slots[index]
            tokens = run_layer(encoder, images, position, forget=self.forget_activations)
            patches.append(tokens + slots())
        return patches

    def _normalized(self, objects: Tensor) -> Tensor:
        """Normalise object slots (B T K F); an absent object stays a row of zeros."""
        normalised = self.normalize_objects(objects.flatten(-2)).unflatten(-1, objects.shape[-2:])
        return normalised * (objects != 0).any(-1, keepdim=True)
