"""The intermediate results of Chameleon or an ablation, for probes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from chameleon_policy.policy.checks import check_observation, check_rank
from chameleon_policy.policy.memory import LayerOutput
from chameleon_policy.policy.observation import Observation
from chameleon_policy.policy.state import MemoryState

if TYPE_CHECKING:
    from chameleon_policy.policy.chameleon import ChameleonPolicy


@dataclass(frozen=True, eq=False)
class Inspection:
    """The intermediate results of B episodes over T time steps, from `ChameleonPolicy.inspect`."""

    tokens: Tensor
    """Z^0_t, B T N D."""
    layers: tuple[LayerOutput, ...]
    """Bound tokens, traces, control context, recalled trace and working state of every layer."""
    attention: Tensor
    """B T L heads N: attention weights of recall over the traces (Eq. 9)."""
    state: MemoryState
    """The memory after the last time step."""

    @property
    def working(self) -> Tensor:
        """h_t of the last layer, B T D."""
        return self.layers[-1].working

    @property
    def control_context(self) -> tuple[Tensor, ...]:
        """u_t of every layer (B T D each); `inspect` can query another memory with them."""
        return tuple(layer.control_context for layer in self.layers)

    def traces(
        self,
        *,
        layers: Sequence[int] | None = None,
        tokens: Sequence[int] | None = None,
        times: Sequence[int] | None = None,
    ) -> Tensor:
        """Return E_t of the chosen layers, time steps and tokens (default: all), B L T N D."""
        traces = torch.stack([layer.traces for layer in self.layers], dim=1)
        for dimension, (name, chosen) in enumerate(
            (("layer", layers), ("time step", times), ("token", tokens)), start=1
        ):
            indices = resolve_indices(name, chosen, traces.shape[dimension])
            traces = traces.index_select(dimension, torch.tensor(indices, device=traces.device))
        return traces


def resolve_indices(what: str, indices: Sequence[int] | None, count: int) -> list[int]:
    """Return indices in 0..count-1; negative ones count from the end, None means all."""
    chosen = list(range(count)) if indices is None else list(indices)
    wrong = [index for index in chosen if not -count <= index < count]
    if wrong:
        raise IndexError(f"there is no {what} {wrong[0]} among {count}")
    return [index % count for index in chosen]


@torch.no_grad()
def inspect(
    policy: ChameleonPolicy,
    observation: Observation,
    state: MemoryState | None = None,
    control_context: Sequence[Tensor | None] | None = None,
) -> Inspection:
    """Observe time steps (with a time axis, B T ...) and return all intermediate results.

    Without a state, the steps begin an episode. `control_context` holds u_t (B T D) for every
    layer, or None for a layer that computes its own; pass that of another inspection to query an
    edited memory in the same way.
    """
    check_rank("proprioception", observation.proprioception, 3)
    shape = (observation.proprioception.shape[0], observation.proprioception.shape[1])
    check_observation(observation, policy.features, shape)
    if state is not None:
        policy.check_state(state, shape[0])
    _check_contexts(control_context, policy.config.layers, (*shape, policy.config.width))
    tokens = policy.event_tokens(observation.to(policy.device))
    outputs, after = policy.remember(tokens, state, control_context=control_context)
    attention = []
    for layer, output in zip(policy.layers, outputs, strict=True):
        query = output.control_context.unsqueeze(-2)
        attention.append(layer.recall.attention.weights(query, output.traces).squeeze(-2))
    return Inspection(tokens, tuple(outputs), torch.stack(attention, dim=2), after)


def _check_contexts(
    contexts: Sequence[Tensor | None] | None, layers: int, expected: tuple[int, ...]
) -> None:
    if contexts is None:
        return
    if len(contexts) != layers:
        raise ValueError(
            f"control_context: expected one (or None) for each of {layers} layers, got "
            f"{len(contexts)}"
        )
    for index, context in enumerate(contexts):
        if context is not None and tuple(context.shape) != expected:
            raise ValueError(
                f"control_context of layer {index}: expected the shape {expected}, got "
                f"{tuple(context.shape)}"
            )
