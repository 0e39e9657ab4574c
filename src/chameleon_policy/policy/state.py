"""The memory of one or more episodes, as a value: batch it, slice it, save it, move it, hand it to another process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from chameleon_policy.policy.memory import LayerState
from chameleon_policy.policy.ssm import SSMState

FORMAT = "chameleon-memory-state"


@dataclass(frozen=True, kw_only=True, eq=False)
class MemoryState:
    """Everything a policy remembers. Its size does not depend on how much it has seen.

    Every tensor's first dimension is the batch: one entry per robot or episode. A step never changes a state, it returns
    a new one; to edit a state, index it, `put` into it, or use `dataclasses.replace`.
    """

    layers: tuple[Any, ...]
    """What is carried from step to step: a `LayerState` per memory layer; other methods have tensors by name."""
    working: Tensor
    """h_t of the last layer, B D: what the action head reads. Other methods have contexts of other shapes, B ..."""
    steps: Tensor
    """B, int64: control steps observed so far."""
    signature: str
    """Fingerprint of the architecture, features and statistics that this state belongs to."""

    def __len__(self) -> int:
        return len(self.working)

    def __getitem__(self, index: int | slice | Sequence[int] | Tensor) -> MemoryState:
        """Some of the episodes; an integer keeps a batch of one, a boolean tensor chooses by mask."""
        where = self._places(index)
        return self._map(lambda tensor: tensor[where])

    def put(self, index: int | slice | Sequence[int] | Tensor, other: MemoryState) -> MemoryState:
        """A copy in which the episodes at `index` are those of `other`; starts some robots of a batch afresh."""
        if other.signature != self.signature:
            raise ValueError(
                "put: the two memory states belong to policies of different architectures, features or statistics"
            )
        where = self._places(index)
        if len(where) != len(other):
            raise ValueError(f"put: {len(where)} places for a memory state that holds {len(other)} episodes")
        others = iter(other.tensors().values())
        return self._map(lambda tensor: tensor.index_put((where,), next(others).to(tensor)))

    def _places(self, index: int | slice | Sequence[int] | Tensor) -> Tensor:
        """Positions in the batch, as a tensor of integers."""
        everything = torch.arange(len(self), device=self.working.device)
        if isinstance(index, slice):
            return everything[index]
        places = torch.as_tensor(index, device=self.working.device)
        if places.dtype == torch.bool and places.dim() == 1 and len(places) == len(self):
            return everything[places]
        if places.numel() == 0:
            places = places.long()
        if places.dtype == torch.bool or places.is_floating_point() or places.dim() > 1:
            raise IndexError(
                f"memory state: expected an integer, a slice, a list of integers or a mask of {len(self)}, got {index!r}"
            )
        places = places.reshape(-1)
        if bool(((places < -len(self)) | (places >= len(self))).any()):
            raise IndexError(f"episode {places.tolist()} of a memory state that holds {len(self)}")
        return places

    @classmethod
    def cat(cls, states: Sequence[MemoryState]) -> MemoryState:
        """One batch out of several."""
        if not states:
            raise ValueError("cat: expected at least one memory state, got none")
        first = states[0]
        for position, state in enumerate(states):
            if state.signature != first.signature:
                raise ValueError(f"cat: memory state {position} belongs to a policy of another architecture than the first")
        columns = zip(*(state.tensors().values() for state in states), strict=True)
        return first._map(lambda _: torch.cat(next(columns)))

    def to(self, device: torch.device | str) -> MemoryState:
        """The same memory on another device."""
        return self._map(lambda tensor: tensor.to(device))

    def detach(self) -> MemoryState:
        """The same memory without its history of gradients."""
        return self._map(Tensor.detach)

    def clone(self) -> MemoryState:
        """A copy that shares nothing with this one."""
        return self._map(Tensor.clone)

    @property
    def nbytes(self) -> int:
        """Size of all its tensors in bytes."""
        return sum(tensor.nbytes for tensor in self.tensors().values())

    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name, in a fixed order."""
        named = {"working": self.working, "steps": self.steps}
        for index, layer in enumerate(self.layers):
            named |= dict(_leaves(layer, f"layers.{index}"))
        return named

    def save(self, path: str | Path) -> None:
        """Write the state to one safetensors file."""
        tensors = {name: tensor.contiguous() for name, tensor in self.tensors().items()}
        safetensors.torch.save_file(tensors, path, metadata={"format": FORMAT, "signature": self.signature})

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
            raise ValueError(f"{path} is not a readable memory state (truncated or damaged?): {error}") from error
        if metadata.get("format") != FORMAT:
            raise ValueError(f"{path} holds tensors, but no memory state; write one with MemoryState.save")
        try:
            layers: list[Any] = []
            while part := _below(tensors, f"layers.{len(layers)}."):
                layers.append(_built(part))
            return cls(
                layers=tuple(layers),
                working=tensors["working"],
                steps=tensors["steps"],
                signature=metadata["signature"],
            )
        except KeyError as error:
            raise ValueError(f"{path} is no complete memory state: {error} is missing") from error

    def _map(self, function: Callable[[Tensor], Tensor]) -> MemoryState:
        """The state with `function` applied to every tensor, in the order of `tensors`."""
        working, steps = function(self.working), function(self.steps)
        layers = tuple(_mapped(layer, function) for layer in self.layers)
        return replace(self, layers=layers, working=working, steps=steps)


# A layer's part of the memory is a dataclass or a dictionary of tensors and of further such parts.


def _parts(node: Any) -> dict[str, Any]:
    return {field.name: getattr(node, field.name) for field in fields(node)} if is_dataclass(node) else node


def _leaves(node: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    if isinstance(node, Tensor):
        yield name, node
        return
    for key, part in _parts(node).items():
        yield from _leaves(part, f"{name}.{key}")


def _mapped(node: Any, function: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(node, Tensor):
        return function(node)
    parts = {key: _mapped(part, function) for key, part in _parts(node).items()}
    return replace(node, **parts) if is_dataclass(node) else parts  # type: ignore[type-var]


def _below(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _built(tensors: dict[str, Tensor]) -> Any:
    """A layer's part out of tensors with dotted names: what has a name of `LayerState` or `SSMState` is one."""
    names = dict.fromkeys(name.partition(".")[0] for name in tensors)
    parts = {name: tensors[name] if name in tensors else _built(_below(tensors, f"{name}.")) for name in names}
    kinds: tuple[type[Any], ...] = (LayerState, SSMState)
    for kind in kinds:
        expected = [field.name for field in fields(kind)]
        if set(expected) & set(parts):
            return kind(**{name: parts[name] for name in expected})
    return parts
