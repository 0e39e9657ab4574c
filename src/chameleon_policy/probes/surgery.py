"""Memory surgery: read, swap and empty the traces of chosen tokens and layers, or working states.

Every function takes a `MemoryState` of Chameleon and returns a new value. An edit acts on the state
of a layer, and its effect shows at the next observation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, get_args

import torch
from torch import Tensor

from chameleon_policy.policy.inspection import resolve_indices
from chameleon_policy.policy.memory import LayerState
from chameleon_policy.policy.ssm import SSMState
from chameleon_policy.policy.state import MemoryState

Tokens = Sequence[int] | Tensor
"""Indices of event tokens, or a mask of them."""
MemoryKind = Literal["traces", "working", "both"]
"""What is edited: the streams of the slow layer, the state of the fast layer, or both."""
MEMORY_KINDS: tuple[MemoryKind, ...] = get_args(MemoryKind)


def trace_states(
    state: MemoryState, *, layers: Sequence[int] | None = None, tokens: Tokens | None = None
) -> Tensor:
    """Return the recurrent states of these traces (default: all), B L N heads P state."""
    states = [
        ssm_states(state, index)[0].ssm
        for index in resolve_indices("layer", layers, len(state.layers))
    ]
    chosen = _token_mask(state, tokens)
    if (chosen != chosen[:1]).any():
        raise ValueError(
            "trace_states: expected the same tokens for all episodes; read one episode, state[i], "
            "at a time"
        )
    return torch.stack(states, dim=1)[:, :, chosen[0]]


def swap(
    state: MemoryState,
    other: MemoryState,
    *,
    layers: Sequence[int] | None = None,
    tokens: Tokens | None = None,
    kind: MemoryKind = "traces",
) -> MemoryState:
    """Return a copy with these traces (default: all) taken from `other`, episode by episode.

    `tokens` are indices or a mask (N, or B N for different tokens in each episode).
    `kind="working"` takes the state of the fast layer instead, which has no tokens; `kind="both"`
    takes both.
    """
    if other.signature != state.signature:
        raise ValueError(
            "swap: the two memory states belong to policies of different architectures"
        )
    if len(other) != len(state):
        raise ValueError(
            f"swap: expected a memory of {len(state)} episodes to take from, got one of "
            f"{len(other)}"
        )
    if kind not in MEMORY_KINDS:
        raise ValueError(f"kind: expected one of {', '.join(MEMORY_KINDS)}, got {kind!r}")
    if tokens is not None and kind == "working":
        raise ValueError("tokens: the working state has none; leave them out, or edit the traces")
    chosen = _token_mask(state, tokens)
    edited = list(state.layers)
    for index in resolve_indices("layer", layers, len(state.layers)):
        slow, fast = ssm_states(state, index)
        new_slow, new_fast = ssm_states(other, index)
        if kind != "working":
            slow = SSMState(
                convolution=_where(chosen, new_slow.convolution, slow.convolution),
                ssm=_where(chosen, new_slow.ssm, slow.ssm),
            )
        if kind != "traces":
            fast = SSMState(
                convolution=new_fast.convolution.to(fast.convolution), ssm=new_fast.ssm.to(fast.ssm)
            )
        edited[index] = LayerState(slow=slow, fast=fast)
    return replace(state, layers=tuple(edited))


def mask(
    state: MemoryState,
    *,
    layers: Sequence[int] | None = None,
    tokens: Tokens | None = None,
    keep: bool = False,
    kind: MemoryKind = "traces",
) -> MemoryState:
    """Return a copy in which these traces (default: all) are empty; with `keep`, all others are."""
    if keep and tokens is None:
        raise ValueError("mask: keep=True keeps the tokens that are named; name them")
    emptied = ~_token_mask(state, tokens) if keep else tokens
    empty = state.with_tensors(
        {name: torch.zeros_like(tensor) for name, tensor in state.tensors().items()}
    )
    return swap(state, empty, layers=layers, tokens=emptied, kind=kind)


def ssm_states(state: MemoryState, layer: int) -> tuple[SSMState, SSMState]:
    """Return the slow and the fast state of a layer; ValueError if the method keeps no traces."""
    memory = state.layers[layer] if state.layers else None
    if not isinstance(memory, LayerState) or not isinstance(memory.slow, SSMState):
        raise ValueError(
            "this memory has no traces: only Chameleon and ablations with a slow state-space "
            "layer have them"
        )
    return memory.slow, memory.fast


def _token_mask(state: MemoryState, tokens: Tokens | None) -> Tensor:
    """Return a mask of the chosen tokens of every episode, B N."""
    episodes, count = ssm_states(state, 0)[0].ssm.shape[:2]
    if isinstance(tokens, Tensor) and tokens.dtype == torch.bool:
        if tokens.shape not in ((count,), (episodes, count)):
            raise ValueError(
                f"tokens: expected a mask of {count}, or of {episodes} x {count}, got one of "
                f"{tuple(tokens.shape)}"
            )
        return tokens.expand(episodes, count)
    chosen = torch.zeros(count, dtype=torch.bool, device=state.working.device)
    indices = None if tokens is None else list(map(int, tokens))
    chosen[resolve_indices("token", indices, count)] = True
    return chosen.expand(episodes, count)


def _where(mask: Tensor, new: Tensor, old: Tensor) -> Tensor:
    """Take `new` where the mask (B N) is True and `old` elsewhere, both B N ..."""
    mask = mask.to(old.device).reshape(*mask.shape, *[1] * (old.dim() - 2))
    return torch.where(mask, new.to(old), old)
