"""Everything that a policy of Chameleon's family computes on the way from observations to its working state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from chameleon_policy.policy.memory import LayerOutput
from chameleon_policy.policy.state import MemoryState, chosen


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
        """u_t of every layer, B T D each: what `inspect` takes to ask another memory the same question."""
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
        for dimension, (name, places) in enumerate((("layer", layers), ("time step", times), ("token", tokens)), start=1):
            indices = chosen(name, places, everything.shape[dimension])
            everything = everything.index_select(dimension, torch.tensor(indices, device=everything.device))
        return everything
