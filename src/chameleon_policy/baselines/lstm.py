"""A recurrent policy like robomimic's BC-RNN: a two-layer LSTM over one vector per frame."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from chameleon_policy.baselines.frame_summary import FrameSummary
from chameleon_policy.baselines.size import closest, count, memory_size
from chameleon_policy.policy import PolicyConfig
from chameleon_policy.policy.action_flow import ActionFlow
from chameleon_policy.policy.initialization import initialise
from chameleon_policy.policy.state import Memory, named_memory
from chameleon_policy.policy.visuomotor import FlowPolicy, Remembered

LAYERS = 2
MULTIPLE = 16
"""Hidden sizes are multiples of this number."""


class RecurrentPolicy(FlowPolicy):
    """An LSTM policy trained on whole episodes, not on robomimic's windows of ten steps."""

    method: ClassVar[str] = "lstm"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        config = self.config
        self.summary = FrameSummary(config, config.layers)
        budget = memory_size(config) - count(lambda: FrameSummary(config, config.layers))
        sizes = range(MULTIPLE, 8 * config.width, MULTIPLE)
        hidden = closest(sizes, lambda size: _recurrence(config, size), budget)
        self.recurrence = _recurrence(config, hidden)
        self.action_flow = ActionFlow(config, self.features.action, self.features.horizon)
        initialise(self)
        self._initialise_half_lives()

    @torch.no_grad()
    def _initialise_half_lives(self) -> None:
        """Give the cells the half-lives of the heads of Chameleon's slow layer (`ssm.py`).

        They forget as slowly and write as strongly as those heads. An LSTM's usual biases halve a
        cell at every step, from which a long memory is not learned.
        """
        lstm: nn.LSTM = self.recurrence["lstm"]  # type: ignore[assignment]
        shortest, longest = (math.log(half_life) for half_life in self.config.slow.half_life)
        spread = torch.linspace(shortest, longest, lstm.hidden_size, dtype=torch.float64)
        kept = 0.5 ** (1 / spread.exp())
        for layer in range(LAYERS):
            biases: Tensor = getattr(lstm, f"bias_ih_l{layer}")
            input_gate, forget_gate, _, _ = biases.chunk(4)
            forget_gate.copy_(torch.logit(kept))
            input_gate.copy_(torch.logit(torch.sqrt(1 - kept.square())))
            getattr(lstm, f"bias_hh_l{layer}").zero_()

    def _initial_memory(self, batch_size: int) -> Memory:
        shape = (batch_size, LAYERS, self.recurrence["lstm"].hidden_size)
        zeros = torch.zeros(shape, dtype=self._precision, device=self.device)  # type: ignore[arg-type]
        return ({"hidden": zeros, "cell": zeros.clone()},)

    def _remember(
        self, tokens: Tensor, memory: Memory | None, steps: Tensor | None, *, keep: bool
    ) -> Remembered:
        summaries = self.summary(tokens)
        before = None
        if memory is not None:
            cells = named_memory(memory)
            # nn.LSTM expects layers before episodes.
            before = tuple(cells[name].transpose(0, 1).contiguous() for name in ("hidden", "cell"))
        # A state that is kept over many steps needs float32.
        with torch.autocast(tokens.device.type, enabled=False):
            outputs, after = self.recurrence["lstm"](summaries.to(self._precision), before)
        hidden, cell = (tensor.transpose(0, 1).to(self._precision) for tensor in after)
        kept = ({"hidden": hidden, "cell": cell},) if keep else None
        return Remembered(self.recurrence["out"](outputs), kept)


def _recurrence(config: PolicyConfig, hidden: int) -> nn.ModuleDict:
    lstm = nn.LSTM(config.width, hidden, num_layers=LAYERS, batch_first=True)
    return nn.ModuleDict({"lstm": lstm, "out": nn.Linear(hidden, config.width)})
