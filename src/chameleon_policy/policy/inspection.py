"""Everything that a policy of Chameleon's family computes on the way from observations to its
working state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from chameleon_policy.policy.checks import check_observation, check_rank
from chameleon_policy.policy.memory import LayerOutput
from chameleon_policy.policy.observation import Observation
from chameleon_policy.policy.state import MemoryState, chosen

if TYPE_CHECKING:
    from chameleon_policy.policy.chameleon import ChameleonPolicy


@dataclass(frozen=True, eq=False)
class Inspection:
    """What `ChameleonPolicy.inspect` saw of B episodes over T time steps."""

    tokens: Tensor
    """Z^0_t, B T N D."""
    layers: tuple[LayerOutput, ...]
    """Of every layer: bound tokens, traces, control context, what was recalled, working state."""
    attention: Tensor
    """B T L heads N: the weights with which recall asks the traces (Eq. 9)."""
    state: MemoryState
    """The memory after the last time step."""

    @property
    def working(self) -> Tensor:
        """h_t of the last layer, B T D."""
        return self.layers[-1].working

    @property
    def control_context(self) -> tuple[Tensor, ...]:
        """u_t of every layer, B T D each: what `inspect` takes to ask another memory the same
        question.
        """
        return tuple(layer.control_context for layer in self.layers)

    def traces(
        self,
        *,
        layers: Sequence[int] | None = None,
        tokens: Sequence[int] | None = None,
        times: Sequence[int] | None = None,
    ) -> Tensor:
        """E_t of the chosen layers, time steps and tokens (default: all), B L T N D."""
        everything = torch.stack([layer.traces for layer in self.layers], dim=1)
        for dimension, (name, places) in enumerate(
            (("layer", layers), ("time step", times), ("token", tokens)), start=1
        ):
            indices = chosen(name, places, everything.shape[dimension])
            everything = everything.index_select(
                dimension, torch.tensor(indices, device=everything.device)
            )
        return everything


@torch.no_grad()
def inspect(
    policy: ChameleonPolicy,
    observation: Observation,
    state: MemoryState | None = None,
    control_context: Sequence[Tensor | None] | None = None,
) -> Inspection:
    """Observe time steps (with a time axis, B T ...) and return everything that was computed.

    Without a state, from the beginning of an episode. `control_context` has u_t (B T D) for every
    layer, or None for a layer that is to make its own: with what another inspection saw there, an
    edited memory is asked the same question.
    """
    check_rank("proprioception", observation.proprioception, 3)
    shape = (observation.proprioception.shape[0], observation.proprioception.shape[1])
    check_observation(observation, policy.features, shape)
    if state is not None:
        policy._check_state(state, shape[0])
    _check_contexts(control_context, policy.config.layers, (*shape, policy.config.width))
    tokens = policy.event_tokens(observation.to(policy.device))
    outputs, after = policy.remember(tokens, state, control_context=control_context)
    asked = [
        layer.recall.attention.weights(output.control_context.unsqueeze(-2), output.traces).squeeze(
            -2
        )
        for layer, output in zip(policy.layers, outputs, strict=True)
    ]
    return Inspection(tokens, tuple(outputs), torch.stack(asked, dim=2), after)


def _check_contexts(
    contexts: Sequence[Tensor | None] | None, layers: int, expected: tuple[int, ...]
) -> None:
    if contexts is None:
        return
    if len(contexts) != layers:
        raise ValueError(
            f"control_context: expected one (or None) for each of {layers} layers, got {len(contexts)}"
        )
    for index, context in enumerate(contexts):
        if context is not None and tuple(context.shape) != expected:
            raise ValueError(
                f"control_context of layer {index}: expected the shape {expected}, got {tuple(context.shape)}"
            )
