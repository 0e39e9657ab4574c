"""Control-indexed prospective memory: a memory layer and its four operations.

| symbol     | name here       | shape   | equation | operation                                    |
|------------|-----------------|---------|----------|----------------------------------------------|
| Z_t        | tokens          | B T N D | 4, 11    | event tokens entering a layer                |
| Z-bar_t    | bound           | B T N D | 5        | 1. event binding, within one time step       |
| E_t        | traces          | B T N D | 6        | 2. trace propagation, each token on its own  |
| c_t        | control_index   | B T D   | 7        | 3. recall: the query, from body and language |
| u_t        | control_context | B T D   | 8        | 3. recall: the query, related to the scene   |
| r_t        | recalled        | B T D   | 9        | 3. recall: what the query retrieves          |
| w_t        | fused           | B T D   | 10       | 4. consolidation: query and recalled trace   |
| h_t        | working         | B T D   | 10       | 4. consolidation: the working state          |
| Z_t (next) | tokens          | B T N D | 11       | write-back                                   |

The proprioception token is the last but one of the N tokens, the language token the last. Only the
two state-space layers mix time steps, so a control step is a sequence of length one.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chameleon_policy.policy.attention import Attention, TransformerBlock, two_layer_mlp
from chameleon_policy.policy.config import PolicyConfig
from chameleon_policy.policy.ssm import SelectiveSSM, SSMState

TraceState = SSMState | dict[str, Tensor]
"""The state of trace propagation: an `SSMState`, or the named tensors of an ablation."""


@dataclass(frozen=True, eq=False)
class LayerState:
    """The state of one memory layer between two time steps."""

    slow: TraceState
    """Leading shape B N: one stream per token."""
    fast: SSMState
    """Leading shape B."""


@dataclass(frozen=True, eq=False)
class LayerOutput:
    """The results of a memory layer; the policy uses `working` and `tokens`, probes the rest."""

    bound: Tensor
    traces: Tensor
    control_context: Tensor
    recalled: Tensor
    working: Tensor
    tokens: Tensor | None
    """The tokens for the next layer; None after the last one."""
    state: LayerState | None
    """After the last time step; None where `keep_state` is False."""


class EventBinding(nn.Module):
    """Z-bar_t = Mixer(Z_t), Eq. 5: the tokens of one time step exchange information."""

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__()
        self.mixer = TransformerBlock(config.width, config.heads, config.feedforward_ratio)

    def forward(self, tokens: Tensor) -> Tensor:
        """Bind event tokens: (B T N D) to (B T N D)."""
        return self.mixer(tokens)


class TracePropagation(nn.Module):
    """e_{1:T,i} = SSM_slow(Z-bar_{1:T,i}), Eq. 6: one shared SSM runs over each token stream i."""

    def __init__(self, config: PolicyConfig, ssm: type[SelectiveSSM] = SelectiveSSM) -> None:
        super().__init__()
        self.slow = ssm(config.width, config.slow)

    def forward(
        self, bound: Tensor, state: TraceState | None, *, keep_state: bool
    ) -> tuple[Tensor, TraceState | None]:
        """Propagate bound tokens (B T N D) as traces (B T N D)."""
        traces, state = self.slow(bound.transpose(1, 2), state, keep_state=keep_state)
        return traces.transpose(1, 2), state

    def initial_state(self, batch_size: int, tokens: int) -> TraceState:
        """Make the state before the first time step."""
        return self.slow.initial_state(batch_size, tokens)

    def write_back_traces(self, traces: Tensor) -> Tensor:
        """Return e_i of every token i for the write-back, (B T N D) or (B T 1 D)."""
        return traces


class ControlContext(nn.Module):
    """c_t = f_c([p-bar_t, q-bar_t]) and u_t = LN(c_t + Attn(c_t, Z-bar_t, Z-bar_t)), Eqs. 7-8."""

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__()
        mlp = two_layer_mlp(2 * config.width, config.width)
        self.index = nn.Sequential(*mlp, nn.LayerNorm(config.width))
        self.attention = Attention(config.width, config.heads)
        self.norm = nn.LayerNorm(config.width)

    def forward(self, bound: Tensor) -> Tensor:
        """Compute the control context (B T D) of bound tokens (B T N D)."""
        control_index = self.index(bound[..., -2:, :].flatten(-2))
        scene = self.attention(control_index.unsqueeze(-2), bound).squeeze(-2)
        return self.norm(control_index + scene)


class ControlIndexedRecall(nn.Module):
    """r_t = LN(Attn(u_t, E_t, E_t)), Eq. 9, with the control context u_t of Eqs. 7-8."""

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__()
        self.control_context = ControlContext(config)
        self.attention = Attention(config.width, config.heads)
        self.norm = nn.LayerNorm(config.width)

    def forward(self, control_context: Tensor, traces: Tensor) -> Tensor:
        """Recall (B T D) from traces (B T N D) by the control context (B T D)."""
        return self.norm(self.attention(control_context.unsqueeze(-2), traces).squeeze(-2))


class WorkingStateConsolidation(nn.Module):
    """w_t = f_w([u_t, r_t]), h_{1:T} = SSM_fast(w_{1:T}), Eq. 10, and f_upd of Eq. 11.

    `config.fast.half_life_limit` bounds the half-life of the working state, so that only traces can
    last much longer.
    """

    def __init__(self, config: PolicyConfig, ssm: type[SelectiveSSM] = SelectiveSSM) -> None:
        super().__init__()
        mlp = two_layer_mlp(2 * config.width, config.width)
        self.fuse = nn.Sequential(*mlp, nn.LayerNorm(config.width))
        self.fast = ssm(config.width, config.fast)
        self.update = two_layer_mlp(2 * config.width, config.width)

    def forward(
        self, control_context: Tensor, recalled: Tensor, state: SSMState | None, *, keep_state: bool
    ) -> tuple[Tensor, SSMState | None]:
        """Fuse control context and recalled trace into the working state, all (B T D)."""
        fused = self.fuse(torch.cat([control_context, recalled], dim=-1))
        return self.fast(fused, state, keep_state=keep_state)

    def write_back(self, bound: Tensor, traces: Tensor, working: Tensor) -> Tensor:
        """Compute Z_i <- Z-bar_i + f_upd([e_i, h]) for every token i, Eq. 11."""
        first: nn.Linear = self.update[0]  # type: ignore[assignment]
        # W [e_i, h] = W_e e_i + W_h h, so that the product with h is computed once for all tokens.
        from_traces, from_working = first.weight.chunk(2, dim=1)
        shared = F.linear(working, from_working, first.bias).unsqueeze(-2)
        return bound + self.update[1:](F.linear(traces, from_traces) + shared)


class MemoryLayer(nn.Module):
    """One of the L memory layers: bind, propagate, recall, consolidate."""

    def __init__(
        self,
        config: PolicyConfig,
        *,
        slow: type[SelectiveSSM] = SelectiveSSM,
        fast: type[SelectiveSSM] = SelectiveSSM,
    ) -> None:
        super().__init__()
        self.binding = EventBinding(config)
        self.propagation = TracePropagation(config, slow)
        self.recall = ControlIndexedRecall(config)
        self.consolidation = WorkingStateConsolidation(config, fast)

    def initial_state(self, batch_size: int, tokens: int) -> LayerState:
        """Make the state before the first time step."""
        slow = self.propagation.initial_state(batch_size, tokens)
        return LayerState(slow=slow, fast=self.consolidation.fast.initial_state(batch_size))

    def forward(
        self,
        tokens: Tensor,
        state: LayerState | None,
        *,
        write_back: bool,
        keep_state: bool = True,
        control_context: Tensor | None = None,
    ) -> LayerOutput:
        """Run the four operations on event tokens (B T N D).

        Without a state, the tokens begin an episode. A given `control_context` replaces the layer's
        own, so that probes can compare memories. The last layer has `write_back=False`, since
        nothing reads its tokens (Eq. 11). Without `keep_state` the output has no state.
        """
        slow, fast = (None, None) if state is None else (state.slow, state.fast)
        bound = self.binding(tokens)
        traces, slow = self.propagation(bound, slow, keep_state=keep_state)
        if control_context is None:
            control_context = self.recall.control_context(bound)
        recalled = self.recall(control_context, traces)
        working, fast = self.consolidation(control_context, recalled, fast, keep_state=keep_state)
        return LayerOutput(
            bound=bound,
            traces=traces,
            control_context=control_context,
            recalled=recalled,
            working=working,
            tokens=self._write_back(bound, traces, working) if write_back else None,
            state=None if slow is None or fast is None else LayerState(slow=slow, fast=fast),
        )

    def _write_back(self, bound: Tensor, traces: Tensor, working: Tensor) -> Tensor:
        traces = self.propagation.write_back_traces(traces)
        return self.consolidation.write_back(bound, traces, working)
