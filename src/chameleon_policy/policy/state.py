"""The memory of one or more episodes as a value: it can be batched, indexed, saved and moved."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from chameleon_policy.policy.memory import LayerState
from chameleon_policy.policy.ssm import SSMState

FORMAT = "chameleon-memory-state"
Index = int | slice | Sequence[int] | Tensor
LayerMemory = LayerState | dict[str, Tensor]
"""The memory of one layer: a `LayerState` for Chameleon, named tensors for other methods."""
Memory = tuple[LayerMemory, ...]
"""The memory of all layers; methods without layers have one entry or none."""


@dataclass(frozen=True, kw_only=True, eq=False)
class MemoryState:
    """The memory of a policy. Its size does not depend on the number of observed steps.

    The first dimension of every tensor is the batch, with one entry per robot or episode. A step
    returns a new state and leaves the old one as it was; to edit a state, index it, `put` into it,
    or use `dataclasses.replace`.
    """

    layers: Memory
    working: Tensor
    """B D: h_t of the last layer, which the action head reads; for other methods B ..., their
    context.
    """
    steps: Tensor
    """B, int64: control steps observed so far."""
    signature: str
    """Fingerprint of the architecture, features and statistics that this state belongs to."""

    def __len__(self) -> int:
        return len(self.working)

    def __getitem__(self, index: Index) -> MemoryState:
        """Select episodes; an integer gives a batch of one, a boolean tensor is a mask."""
        rows = self._rows(index)
        return self._map(lambda tensor: tensor[rows])

    def put(self, index: Index, other: MemoryState) -> MemoryState:
        """Return a copy whose episodes at `index` are those of `other`."""
        if other.signature != self.signature:
            raise ValueError(
                "put: the two memory states belong to policies of different architectures, "
                "features or statistics"
            )
        rows = self._rows(index)
        if len(rows) != len(other):
            raise ValueError(
                f"put: the index names {len(rows)} episodes, the other memory state holds "
                f"{len(other)}"
            )
        new = other.tensors()
        return self.with_tensors(
            {
                name: tensor.index_put((rows,), new[name].to(tensor))
                for name, tensor in self.tensors().items()
            }
        )

    @classmethod
    def cat(cls, states: Sequence[MemoryState]) -> MemoryState:
        """Join several states along the batch dimension."""
        if not states:
            raise ValueError("cat: expected at least one memory state, got none")
        first = states[0]
        for position, state in enumerate(states):
            if state.signature != first.signature:
                raise ValueError(
                    f"cat: memory state {position} belongs to a policy of another architecture "
                    "than the first"
                )
        parts = [state.tensors() for state in states]
        return first.with_tensors(
            {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        )

    def to(self, device: torch.device | str) -> MemoryState:
        """Return the same memory on another device."""
        return self._map(lambda tensor: tensor.to(device))

    def detach(self) -> MemoryState:
        """Return the same memory without gradient history."""
        return self._map(Tensor.detach)

    def clone(self) -> MemoryState:
        """Return a copy that shares no storage with this state."""
        return self._map(Tensor.clone)

    @property
    def nbytes(self) -> int:
        """Size of all tensors in bytes."""
        return sum(tensor.nbytes for tensor in self.tensors().values())

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors by name, in a fixed order."""
        named = {"working": self.working, "steps": self.steps}
        for index, layer in enumerate(self.layers):
            named |= _with_prefix(f"layers.{index}.", layer_tensors(layer))
        return named

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> MemoryState:
        """Return a copy in which the given tensors replace those of the same names."""
        named = {**self.tensors(), **tensors}
        return replace(
            self,
            layers=tuple(
                layer_from_tensors(_without_prefix(f"layers.{index}.", named))
                for index in range(len(self.layers))
            ),
            working=named["working"],
            steps=named["steps"],
        )

    def save(self, path: str | Path) -> None:
        """Write the state to one safetensors file."""
        tensors = {name: tensor.contiguous() for name, tensor in self.tensors().items()}
        safetensors.torch.save_file(
            tensors, path, metadata={"format": FORMAT, "signature": self.signature}
        )

    @classmethod
    def load(cls, path: str | Path, device: torch.device | str = "cpu") -> MemoryState:
        """Read a state written by `save`."""
        if not Path(path).is_file():
            raise FileNotFoundError(f"there is no memory state at {path}")
        try:
            with safetensors.safe_open(path, framework="pt", device=str(device)) as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except safetensors.SafetensorError as error:
            raise ValueError(
                f"{path} is not a readable memory state (truncated or damaged?): {error}"
            ) from error
        if metadata.get("format") != FORMAT:
            raise ValueError(
                f"{path} holds tensors, but no memory state; write one with MemoryState.save"
            )
        try:
            layers: list[LayerMemory] = []
            while layer := _without_prefix(f"layers.{len(layers)}.", tensors):
                layers.append(layer_from_tensors(layer))
            return cls(
                layers=tuple(layers),
                working=tensors["working"],
                steps=tensors["steps"],
                signature=metadata["signature"],
            )
        except KeyError as error:
            raise ValueError(f"{path} is no complete memory state: {error} is missing") from error

    def _map(self, function: Callable[[Tensor], Tensor]) -> MemoryState:
        """Return the state with `function` applied to every tensor."""
        return self.with_tensors(
            {name: function(tensor) for name, tensor in self.tensors().items()}
        )

    def _rows(self, index: Index) -> Tensor:
        """Return the rows of the batch that `index` names, as a tensor of integers."""
        all_rows = torch.arange(len(self), device=self.working.device)
        if isinstance(index, slice):
            return all_rows[index]
        rows = torch.as_tensor(index, device=self.working.device)
        if rows.dtype == torch.bool and rows.dim() == 1 and len(rows) == len(self):
            return all_rows[rows]
        if rows.numel() == 0:
            rows = rows.long()
        if rows.dtype == torch.bool or rows.is_floating_point() or rows.dim() > 1:
            raise IndexError(
                "memory state: expected an integer, a slice, a list of integers or a mask of "
                f"{len(self)}, got {index!r}"
            )
        rows = rows.reshape(-1).long()  # an index of bytes would count as a mask
        if bool(((rows < -len(self)) | (rows >= len(self))).any()):
            raise IndexError(f"episode {rows.tolist()} of a memory state that holds {len(self)}")
        return rows


def named_memory(layers: Memory) -> dict[str, Tensor]:
    """Return the memory of a method that keeps one entry of tensors by name."""
    (memory,) = layers
    assert isinstance(memory, dict)
    return memory


def layer_tensors(layer: LayerMemory) -> dict[str, Tensor]:
    """Return the tensors of a layer's memory by name, such as `slow.ssm` for Chameleon."""
    if not isinstance(layer, LayerState):
        return layer
    return {
        **_with_prefix("slow.", _ssm_tensors(layer.slow)),
        **_with_prefix("fast.", _ssm_tensors(layer.fast)),
    }


def layer_from_tensors(tensors: dict[str, Tensor]) -> LayerMemory:
    """Rebuild a layer's memory from `layer_tensors`."""
    slow, fast = (_without_prefix(prefix, tensors) for prefix in ("slow.", "fast."))
    if not slow and not fast:
        return tensors
    # Ablations without a slow state-space layer have other tensors in its place.
    has_ssm = "convolution" in slow or "ssm" in slow
    return LayerState(
        slow=_ssm_from_tensors(slow) if has_ssm else slow, fast=_ssm_from_tensors(fast)
    )


def _ssm_tensors(state: SSMState | dict[str, Tensor]) -> dict[str, Tensor]:
    if not isinstance(state, SSMState):
        return state
    return {"convolution": state.convolution, "ssm": state.ssm}


def _ssm_from_tensors(tensors: dict[str, Tensor]) -> SSMState:
    return SSMState(convolution=tensors["convolution"], ssm=tensors["ssm"])


def _with_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}{name}": tensor for name, tensor in tensors.items()}


def _without_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors whose names begin with `prefix`, named by what follows it."""
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }
