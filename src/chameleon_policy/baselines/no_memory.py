"""The memoryless twin: Chameleon with the same parameters and the same loss that forgets everything after each step."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from chameleon_policy.policy import ChameleonPolicy, MemoryState
from chameleon_policy.policy.memory import LayerOutput


class NoMemoryPolicy(ChameleonPolicy):
    """Every time step meets an empty memory: what the policy does follows from the current observation alone."""

    method = "no-memory"

    def remember(self, tokens: Tensor, state: MemoryState) -> tuple[list[LayerOutput], MemoryState]:
        """Event tokens (B T N D) through the memory layers, each time step as a sequence of its own."""
        batch, time = tokens.shape[:2]
        alone, last = super().remember(tokens.reshape(-1, 1, *tokens.shape[2:]), self.initial_state(batch * time))
        outputs = [_together(output, batch, time) for output in alone]
        working = last.working.unflatten(0, (batch, time))[:, -1].clone()
        return outputs, replace(state, working=working, steps=state.steps + time)


def _together(output: LayerOutput, batch: int, time: int) -> LayerOutput:
    """(B*T 1 ...) to (B T ...)."""

    def together(values: Tensor) -> Tensor:
        return values.reshape(batch, time, *values.shape[2:])

    return replace(
        output,
        bound=together(output.bound),
        traces=together(output.traces),
        control_context=together(output.control_context),
        recalled=together(output.recalled),
        working=together(output.working),
        tokens=None if output.tokens is None else together(output.tokens),
    )
