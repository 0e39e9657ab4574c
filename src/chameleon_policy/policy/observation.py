"""The inputs of the policy: one observation per robot in control, padded episodes in training.

Layouts, everywhere in this package (B robots or episodes, T time steps; T is absent in control):

| field          | shape           | values                                                        |
|----------------|-----------------|---------------------------------------------------------------|
| images[name]   | B (T) H W 3     | uint8, or float in [0, 1]; channels last, as cameras do       |
| objects        | B (T) K F       | object slots, the robot's units; zeros for an absent object   |
| proprioception | B (T) P         | the robot's units                                             |
| instruction    | B W             | embeddings of `language.py`, one per episode                  |
| actions        | B (T + extra) A | the robot's units                                             |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class Observation:
    """The observation of one time step or of whole episodes: O_t, s_t and g_t of the paper."""

    proprioception: Tensor
    images: Mapping[str, Tensor] = field(default_factory=dict)
    objects: Tensor | None = None
    instruction: Tensor | None = None

    @classmethod
    def single(
        cls,
        *,
        proprioception: Any,
        images: Mapping[str, Any] | None = None,
        objects: Any = None,
        instruction: Any = None,
    ) -> Observation:
        """Make one robot's observation from arrays or tensors without a batch dimension."""

        def batched(value: Any) -> Tensor:
            return torch.as_tensor(value).unsqueeze(0)

        return cls(
            proprioception=batched(proprioception).float(),
            images={name: batched(image) for name, image in (images or {}).items()},
            objects=None if objects is None else batched(objects).float(),
            instruction=None if instruction is None else batched(instruction).float(),
        )

    def map(self, function: Callable[[Tensor], Tensor]) -> Observation:
        """Apply `function` to every tensor that has a time axis in training."""
        return replace(
            self,
            proprioception=function(self.proprioception),
            images={name: function(image) for name, image in self.images.items()},
            objects=None if self.objects is None else function(self.objects),
        )

    def to(self, device: torch.device | str) -> Observation:
        """Return the same observation on another device."""
        moved = self.map(lambda tensor: _move(tensor, device))
        if self.instruction is None:
            return moved
        return replace(moved, instruction=self.instruction.to(device))

    def at(self, time: int) -> Observation:
        """Return the observation of one time step of an episode batch, as in control."""
        return self.map(lambda tensor: tensor[:, time])


@dataclass(frozen=True, kw_only=True, eq=False)
class EpisodeBatch:
    """Whole episodes, padded at the end to a common length T.

    Actions may extend past the observations (by up to H - 1 steps), so that a window of a longer
    episode has complete chunks. Chunk positions after the last valid action do not count in the
    loss. Both masks are True up to an episode's end and False after it.
    """

    observation: Observation
    actions: Tensor
    valid: Tensor
    """B T, True where the observation is real and not padding."""
    actions_valid: Tensor | None = None
    """B (T + extra), True where the action is real; None: as `valid`."""
    emphasis: Tensor | None = None
    """B T, not negative: weights of the time steps when `objective.action_steps` draws some of
    them; None: uniform.
    """
    deciding: Tensor | None = None
    """B T, True where the robot is about to decide; the loss reports the action loss of these steps
    separately.
    """

    def to(self, device: torch.device | str) -> EpisodeBatch:
        """Return the same batch on another device."""
        return self.map(lambda tensor: _move(tensor, device))

    def pin_memory(self) -> EpisodeBatch:
        """Return the same batch in page-locked memory, for asynchronous copies to a GPU."""
        return self.map(lambda tensor: tensor.pin_memory())

    def record_stream(self, stream: torch.cuda.Stream) -> None:
        """Keep the memory of this batch from reuse until a stream has finished with it."""

        def record(tensor: Tensor) -> Tensor:
            tensor.record_stream(stream)
            return tensor

        self.map(record)

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors by name, in a fixed order."""
        observation = self.observation
        named = {
            "proprioception": observation.proprioception,
            "objects": observation.objects,
            "instruction": observation.instruction,
        }
        named |= {f"images.{name}": observation.images[name] for name in sorted(observation.images)}
        named |= {
            name: getattr(self, name)
            for name in ("actions", "valid", "actions_valid", "emphasis", "deciding")
        }
        return {name: tensor for name, tensor in named.items() if tensor is not None}

    def map(self, function: Callable[[Tensor], Tensor]) -> EpisodeBatch:
        """Return the batch with `function` applied to every tensor."""
        return self.with_tensors(
            {name: function(tensor) for name, tensor in self.tensors().items()}
        )

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> EpisodeBatch:
        """Return a copy in which the given tensors replace those of the same names."""
        named = {**self.tensors(), **tensors}
        observation = Observation(
            proprioception=named["proprioception"],
            images={name: named[f"images.{name}"] for name in self.observation.images},
            objects=named.get("objects"),
            instruction=named.get("instruction"),
        )
        optional = {name: named.get(name) for name in ("actions_valid", "emphasis", "deciding")}
        return EpisodeBatch(
            observation=observation, actions=named["actions"], valid=named["valid"], **optional
        )


@dataclass(frozen=True, eq=False)
class Augmentation:
    """The random draws of some episodes: pass the same value for every window of a long episode."""

    crop: Tensor
    """B V 2 in [0, 1): position of each view's crop in the free rows and columns."""
    proprioception_offset: Tensor
    """B P, in normalised units."""

    def __getitem__(self, index: Sequence[int]) -> Augmentation:
        """Return the draws of some of the episodes."""
        rows = list(index)
        return Augmentation(self.crop[rows], self.proprioception_offset[rows])


def _move(tensor: Tensor, device: torch.device | str) -> Tensor:
    # An asynchronous copy to the CPU could be read before it is complete.
    return tensor.to(device, non_blocking=torch.device(device).type != "cpu")
