"""The memory of one or more episodes, as a value: batch it, slice it, save it, move it, hand it to
another process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from chameleon_policy.policy.memory import LayerState
from chameleon_policy.policy.ssm import SSMState

FORMAT = "chameleon-memory-state"
Tokens = Sequence[int] | Tensor
"""Numbers of event tokens, or a mask of them."""
Part = Literal["traces", "working", "both"]
PARTS: tuple[Part, ...] = get_args(Part)
"""What surgery is done on: the slow layer's streams, the fast layer's state, or both."""


@dataclass(frozen=True, kw_only=True, eq=False)
class MemoryState:
    """Everything a policy remembers. Its size does not depend on how much it has seen.

    Every tensor's first dimension is the batch: one entry per robot or episode. A step never
    changes a state, it returns a new one; to edit a state, index it, `put` into it, or use
    `dataclasses.replace`.
    """

    layers: tuple[Any, ...]
    """What is carried from step to step: a `LayerState` per memory layer; other methods have
    tensors by name.
    """
    working: Tensor
    """h_t of the last layer, B D: what the action head reads. Other methods have contexts of other
    shapes, B ...
    """
    steps: Tensor
    """B, int64: control steps observed so far."""
    signature: str
    """Fingerprint of the architecture, features and statistics that this state belongs to."""

    def __len__(self) -> int:
        return len(self.working)

    def __getitem__(self, index: int | slice | Sequence[int] | Tensor) -> MemoryState:
        """Some of the episodes; an integer keeps a batch of one, a boolean tensor chooses by
        mask.
        """
        where = self._places(index)
        return self._map(lambda tensor: tensor[where])

    def put(self, index: int | slice | Sequence[int] | Tensor, other: MemoryState) -> MemoryState:
        """A copy in which the episodes at `index` are those of `other`; starts some robots of a
        batch afresh.
        """
        if other.signature != self.signature:
            raise ValueError(
                "put: the two memory states belong to policies of different architectures, features or statistics"
            )
        where = self._places(index)
        if len(where) != len(other):
            raise ValueError(
                f"put: {len(where)} places for a memory state that holds {len(other)} episodes"
            )
        others = other.tensors()
        return self.with_tensors(
            {
                name: mine.index_put((where,), others[name].to(mine))
                for name, mine in self.tensors().items()
            }
        )

    # Surgery: who reads, swaps or empties traces gets a new state; what follows from it shows at
    # the next `observe`

    def carried(
        self, *, layers: Sequence[int] | None = None, tokens: Tokens | None = None
    ) -> Tensor:
        """What the traces of these tokens carry in these layers (default: all), B L N heads P
        state.
        """
        streams = [self._streams(index).ssm for index in chosen("layer", layers, len(self.layers))]
        places = self._token_mask(tokens)
        if (places != places[:1]).any():
            raise ValueError(
                "carried: expected the same tokens for all episodes; read them one by one, state[i].carried()"
            )
        return torch.stack(streams, dim=1)[:, :, places[0]]

    def swap(
        self,
        other: MemoryState,
        *,
        layers: Sequence[int] | None = None,
        tokens: Tokens | None = None,
        part: Part = "traces",
    ) -> MemoryState:
        """A copy in which the traces of these tokens in these layers (default: all) are `other`'s,
        episode by episode.

        `tokens` are their numbers, or a mask (N, or B N for other tokens in each episode). With
        `part="working"` it is the state of the fast layer, which has no tokens, and with
        `part="both"` both.
        """
        if other.signature != self.signature:
            raise ValueError(
                "swap: the two memory states belong to policies of different architectures"
            )
        if len(other) != len(self):
            raise ValueError(
                f"swap: expected a memory of {len(self)} episodes to take from, got one of {len(other)}"
            )
        if part not in PARTS:
            raise ValueError(f"part: expected one of {', '.join(PARTS)}, got {part!r}")
        if tokens is not None and part == "working":
            raise ValueError(
                "tokens: the working state has none; leave them out, or edit the traces"
            )
        places = self._token_mask(tokens)
        edited = list(self.layers)
        for index in chosen("layer", layers, len(self.layers)):
            mine, theirs = self._streams(index), other._streams(index)
            if part != "working":
                both = zip(_parts(mine).items(), _parts(theirs).values(), strict=True)
                slow = {
                    name: torch.where(_like(places, tensor), new.to(tensor), tensor)
                    for (name, tensor), new in both
                }
                edited[index] = replace(edited[index], slow=SSMState(**slow))
            if part != "traces":
                pairs = zip(
                    _parts(edited[index].fast).items(),
                    _parts(other.layers[index].fast).values(),
                    strict=True,
                )
                fast = {name: new.to(tensor) for (name, tensor), new in pairs}
                edited[index] = replace(edited[index], fast=SSMState(**fast))
        return replace(self, layers=tuple(edited))

    def mask(
        self,
        *,
        layers: Sequence[int] | None = None,
        tokens: Tokens | None = None,
        keep: bool = False,
        part: Part = "traces",
    ) -> MemoryState:
        """A copy in which these traces (default: all) are as empty as before the first step; with
        `keep`, all others are.
        """
        if keep and tokens is None:
            raise ValueError("mask: keep=True keeps the tokens that are named; name them")
        emptied = ~self._token_mask(tokens) if keep else tokens
        return self.swap(self._map(torch.zeros_like), layers=layers, tokens=emptied, part=part)

    def _streams(self, layer: int) -> SSMState:
        """The slow state of a layer, or a ValueError where a method keeps something else there."""
        slow = self.layers[layer].slow if isinstance(self.layers[layer], LayerState) else None
        if not isinstance(slow, SSMState):
            raise ValueError(
                "this memory has no traces: only Chameleon and ablations with a slow state-space layer have them"
            )
        return slow

    def _token_mask(self, tokens: Tokens | None) -> Tensor:
        """Which tokens of which episodes, B N."""
        count = self._streams(0).ssm.shape[1]
        if isinstance(tokens, Tensor) and tokens.dtype == torch.bool:
            if tokens.shape not in ((count,), (len(self), count)):
                raise ValueError(
                    f"tokens: expected a mask of {count}, or of {len(self)} x {count}, got one of {tuple(tokens.shape)}"
                )
            return tokens.expand(len(self), count)
        mask = torch.zeros(count, dtype=torch.bool, device=self.working.device)
        mask[chosen("token", None if tokens is None else list(map(int, tokens)), count)] = True
        return mask.expand(len(self), count)

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
                raise ValueError(
                    f"cat: memory state {position} belongs to a policy of another architecture than the first"
                )
        parts = [state.tensors() for state in states]
        return first.with_tensors(
            {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        )

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

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> MemoryState:
        """Return the same memory with other tensors under some of the names of `tensors`."""
        return replace(
            self,
            layers=tuple(
                _rebuilt(layer, f"layers.{index}", tensors)
                for index, layer in enumerate(self.layers)
            ),
            working=tensors.get("working", self.working),
            steps=tensors.get("steps", self.steps),
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
        """Return the state with `function` applied to every tensor."""
        return self.with_tensors(
            {name: function(tensor) for name, tensor in self.tensors().items()}
        )


def chosen(what: str, numbers: Sequence[int] | None, count: int) -> list[int]:
    """Numbers of layers, tokens or time steps, counted from the end where they are negative; None
    means all.
    """
    places = list(range(count)) if numbers is None else list(numbers)
    wrong = [place for place in places if not -count <= place < count]
    if wrong:
        raise IndexError(f"there is no {what} {wrong[0]} among {count}")
    return [place % count for place in places]


def _like(places: Tensor, tensor: Tensor) -> Tensor:
    """A mask B N for a tensor B N ..."""
    return places.to(tensor.device).reshape(*places.shape, *[1] * (tensor.dim() - 2))


# A layer's part of the memory is a dataclass or a dictionary of tensors and of further such parts.


def _parts(node: Any) -> dict[str, Any]:
    return (
        {field.name: getattr(node, field.name) for field in fields(node)}
        if is_dataclass(node)
        else node
    )


def _leaves(node: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    if isinstance(node, Tensor):
        yield name, node
        return
    for key, part in _parts(node).items():
        yield from _leaves(part, f"{name}.{key}")


def _rebuilt(node: Any, name: str, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(node, Tensor):
        return tensors.get(name, node)
    parts = {key: _rebuilt(part, f"{name}.{key}", tensors) for key, part in _parts(node).items()}
    return replace(node, **parts) if is_dataclass(node) else parts  # type: ignore[type-var]


def _below(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }


def _built(tensors: dict[str, Tensor]) -> Any:
    """A layer's part out of tensors with dotted names: what has a name of `LayerState` or
    `SSMState` is one.
    """
    names = dict.fromkeys(name.partition(".")[0] for name in tensors)
    parts = {
        name: tensors[name] if name in tensors else _built(_below(tensors, f"{name}."))
        for name in names
    }
    kinds: tuple[type[Any], ...] = (LayerState, SSMState)
    for kind in kinds:
        expected = [field.name for field in fields(kind)]
        if set(expected) & set(parts):
            return kind(**{name: parts[name] for name in expected})
    return parts
