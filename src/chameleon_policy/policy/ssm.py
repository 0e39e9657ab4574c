"""The selective state-space layer that carries memory through time (Mamba2-style), in plain
PyTorch.

One layer, two ways to run it that give the same numbers: `scan` takes a whole sequence at once
(training), `step` takes one time step (control). Both start from a state and return the next one.

| symbol  | name here      | shape           | meaning                                                   |
|---------|----------------|-----------------|-----------------------------------------------------------|
| x_t     | values         | S T heads P     | what is written, after the convolution                    |
| Delta_t | rates          | S T heads       | how strongly this step is written, and how fast time runs |
| A       | decay          | heads           | negative; a step multiplies the state by exp(Delta_t A)   |
| B_t     | write          | S T state       | where in the state x_t is written                         |
| C_t     | read           | S T state       | where in the state the output is read                     |
| D       | skip           | heads           | the part of x_t that passes straight through              |
| state_t | state.ssm      | S heads P state | exp(Delta_t A) state_{t-1} + Delta_t x_t (outer) B_t      |
| y_t     | output         | S T heads P     | state_t C_t + D x_t                                       |

S: independent streams (any leading shape), T: time, P: channels of a head.

Decisions
- One group: every head writes and reads at the same B_t and C_t, as the parameter budget requires.
- Half-lives at initialisation are spread evenly in log over the heads, between the two ends that
  the configuration gives.
  They hold for the mean of Delta_t over inputs of unit variance, before a limit cuts the small ones
  off.
- Delta_t depends on the input from the start, and strongly (`selectivity`): some heads write an
  event of one step louder
  than the many steps around it. The price: while nothing changes, a head keeps one draw of Delta_t,
  and its half-life lies well off the nominal one, to both sides (docs/deviations.md has the
  measured ones).
- So a layer that must forget has a hard limit, `half_life_limit` = H_max: Delta_t >= ln 2 / (H_max |A|) in every head. It
  may forget faster, never slower. Mamba2's `dt_limit` bounds Delta_t itself; this bounds what the
  memory feels, Delta_t A.
- Of the two factors in Delta_t A, Delta_t is sqrt(1 - a^2) at its bias, where a is the head's decay
  per step. Mamba2's own
  choice writes the longest memories faintest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chameleon_policy.policy.config import SSMConfig

NORM_EPSILON = 1e-5


@dataclass(frozen=True, eq=False)
class SSMState:
    """What one layer carries from step to step; leading dimensions are those of the streams."""

    convolution: Tensor
    """The last inputs of the convolution, ... x (width - 1) x channels."""
    ssm: Tensor
    """The recurrent state, ... x heads x P x state."""


def expected_rate(bias: Tensor, selectivity: float) -> Tensor:
    """Compute the mean of softplus(bias + selectivity z) over standard normal z: a head's clock on
    average, unlimited.
    """
    z = torch.linspace(-6, 6, 241, dtype=bias.dtype, device=bias.device)
    density = torch.softmax(-z.square() / 2, dim=0)
    return (F.softplus(bias[:, None] + selectivity * z) * density).sum(-1)


class SelectiveSSM(nn.Module):
    """A Mamba2 layer: projection, causal convolution, selective recurrence, gated RMSNorm,
    projection.
    """

    def __init__(self, width: int, config: SSMConfig) -> None:
        super().__init__()
        self.config = config
        self.inner = config.expand * width
        self.heads = self.inner // config.head_dim
        # x, B and C pass through the convolution together
        self.channels = self.inner + 2 * config.state
        self.in_projection = nn.Linear(width, self.inner + self.channels + self.heads, bias=False)
        # Stored like a depthwise Conv1d, width last; a newest input meets the last tap.
        bound = 1 / math.sqrt(config.convolution)
        self.convolution_weight = nn.Parameter(
            torch.empty(self.channels, config.convolution).uniform_(-bound, bound)
        )
        self.convolution_bias = nn.Parameter(torch.empty(self.channels).uniform_(-bound, bound))
        self.rate_bias = nn.Parameter(torch.empty(self.heads))
        self.log_decay = nn.Parameter(torch.empty(self.heads))
        self.skip = nn.Parameter(torch.ones(self.heads))
        self.norm_weight = nn.Parameter(torch.ones(self.inner))
        self.out_projection = nn.Linear(self.inner, width, bias=False)
        self.initialise_half_lives()

    @torch.no_grad()
    def initialise_half_lives(self) -> None:
        """Spread the heads' nominal half-lives evenly in log over `config.half_life`."""
        shortest, longest = (math.log(h) for h in self.config.half_life)
        half_lives = torch.linspace(shortest, longest, self.heads, dtype=torch.float64).exp()
        decay_exponent = math.log(2) / half_lives
        gain = torch.sqrt(-torch.expm1(-2 * decay_exponent))
        bias = gain + torch.log(-torch.expm1(-gain))  # softplus of this is `gain`
        self.rate_bias.copy_(bias)
        self.log_decay.copy_(
            torch.log(decay_exponent / expected_rate(bias, self.config.selectivity))
        )
        width = self.in_projection.in_features
        self.in_projection.weight[-self.heads :].normal_(
            std=self.config.selectivity / math.sqrt(width)
        )

    @property
    def half_lives(self) -> Tensor:
        """Nominal half-life of every head, in steps: that of the mean clock over inputs of unit
        variance, unlimited.
        """
        return math.log(2) / (
            expected_rate(self.rate_bias, self.config.selectivity) * self.log_decay.exp()
        )

    def least_rates(self) -> Tensor | None:
        """Compute ln 2 / (H_max |A|) of every head, below which Delta_t must not fall; None without a limit."""
        limit, decay = self.config.half_life_limit, self.log_decay.exp()
        precise = torch.promote_types(decay.dtype, torch.float32)
        return None if limit is None else math.log(2) / (limit * decay.to(precise))

    def initial_state(self, *streams: int) -> SSMState:
        """Make the state before the first step, for streams of the given leading shape."""
        dtype = torch.promote_types(self.skip.dtype, torch.float32)
        return SSMState(
            convolution=self.skip.new_zeros(*streams, self.config.convolution - 1, self.channels),
            ssm=self.skip.new_zeros(
                *streams, self.heads, self.config.head_dim, self.config.state, dtype=dtype
            ),
        )

    def forward(
        self, sequence: Tensor, state: SSMState | None, *, keep_state: bool = True
    ) -> tuple[Tensor, SSMState | None]:
        """Run over a sequence (... T width), one time step through `step`, more through `scan`:
        outputs of the same shape.

        Without a state, from the beginning. The state afterwards is None where `keep_state` is
        False.
        """
        if state is None:
            state = self.initial_state(*sequence.shape[:-2])
        if sequence.shape[-2] == 1:
            output, state = self.step(sequence.squeeze(-2), state)
            output = output.unsqueeze(-2)
        else:
            output, state = self.scan(sequence, state)
        return output, state if keep_state else None

    def scan(self, sequence: Tensor, state: SSMState) -> tuple[Tensor, SSMState]:
        """Run all time steps at once: (... T width) and the state before to (... T width) and the
        state after them.
        """
        streams = sequence.shape[:-2]
        gate, values, write, read, rates, history = self._inputs(sequence.flatten(0, -3), state)
        output, ssm = chunked_scan(
            values,
            rates,
            -self.log_decay.exp(),
            write,
            read,
            state.ssm.flatten(0, len(streams) - 1),
            self.config.chunk,
        )
        output = self._outputs(output + self.skip[:, None] * values, gate)
        return output.unflatten(0, streams), SSMState(
            history.unflatten(0, streams), ssm.unflatten(0, streams)
        )

    def step(self, current: Tensor, state: SSMState) -> tuple[Tensor, SSMState]:
        """Run one time step: (... width) and the state before it to (... width) and the state after
        it.
        """
        streams = current.shape[:-1]
        gate, values, write, read, rates, history = self._inputs(
            current.flatten(0, -2).unsqueeze(1), state
        )
        values, write, read, rates = values[:, 0], write[:, 0], read[:, 0], rates[:, 0]
        kept = torch.exp(-rates * self.log_decay.exp())[..., None, None] * state.ssm.flatten(
            0, len(streams) - 1
        )
        ssm = kept + (rates[..., None] * values)[..., None] * write[:, None, None, :]
        output = (
            torch.matmul(ssm, read[:, None, :, None].to(ssm.dtype)).squeeze(-1)
            + self.skip[:, None] * values
        )
        output = self._outputs(output.unsqueeze(1), gate).squeeze(1)
        return output.unflatten(0, streams), SSMState(
            history.unflatten(0, streams), ssm.unflatten(0, streams)
        )

    def _inputs(
        self, sequence: Tensor, state: SSMState
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Compute gate, x, B, C and Delta of every step of (S T width), and the convolution's
        history afterwards.
        """
        gate, mixed, rates = self.in_projection(sequence).split(
            [self.inner, self.channels, self.heads], dim=-1
        )
        history = state.convolution.flatten(0, -3).to(mixed.dtype)
        padded = torch.cat([history, mixed], dim=1)
        steps = mixed.shape[1]
        taps = self.convolution_weight.unbind(-1)
        convolved = sum(
            (padded[:, i : i + steps] * tap for i, tap in enumerate(taps)),
            start=self.convolution_bias,
        )
        values, write, read = F.silu(convolved).split(
            [self.inner, self.config.state, self.config.state], dim=-1
        )
        values = values.unflatten(-1, (self.heads, self.config.head_dim))
        return (
            gate,
            values,
            write,
            read,
            self._rates(rates),
            padded[:, steps:].to(state.convolution.dtype, copy=True),
        )

    def _rates(self, projected: Tensor) -> Tensor:
        """Compute Delta = max(softplus(projected + bias), ln 2 / (H_max |A|)), (... heads)."""
        # Decays are products of many factors close to one: never below float32.
        precise = torch.promote_types(projected.dtype, torch.float32)
        rates, least = F.softplus(projected.to(precise) + self.rate_bias), self.least_rates()
        return rates if least is None else torch.maximum(rates, least)

    def _outputs(self, output: Tensor, gate: Tensor) -> Tensor:
        """Apply the gated RMSNorm over all channels, then the output projection."""
        precise = torch.promote_types(gate.dtype, torch.float32)
        gated = output.flatten(-2).to(precise) * F.silu(gate.to(precise))
        normalised = gated * torch.rsqrt(gated.square().mean(-1, keepdim=True) + NORM_EPSILON)
        return self.out_projection((normalised * self.norm_weight).to(gate.dtype))


def chunked_scan(
    values: Tensor,
    rates: Tensor,
    decay: Tensor,
    write: Tensor,
    read: Tensor,
    state: Tensor,
    chunk: int,
) -> tuple[Tensor, Tensor]:
    """Compute the recurrence of this file's table, without D, as matrix products over chunks of
    time.

    Inside a chunk the recurrence is a causal matrix applied to the values; from chunk to chunk only
    the state travels. Shapes as in the table; returns the outputs (S T heads P) and the state after
    the last step.
    """
    steps = values.shape[1]
    chunk = math.ceil(steps / math.ceil(steps / chunk))  # even chunks, so that little is padded
    padding = -steps % chunk
    if padding:  # a padded step has Delta = 0: it neither writes nor lets time pass
        values, rates, write, read = (
            F.pad(tensor, (0, 0) * (tensor.dim() - 2) + (0, padding))
            for tensor in (values, rates, write, read)
        )
    values, write, read = (
        tensor.unflatten(1, (-1, chunk)).to(state.dtype) for tensor in (values, write, read)
    )  # S chunks chunk ...
    rates = rates.unflatten(1, (-1, chunk)).to(state.dtype)
    # S chunks heads chunk: log of the decay since the chunk began
    elapsed = (rates * decay).cumsum(2).movedim(-1, 2)
    written = (values * rates[..., None]).movedim(3, 2)  # S chunks heads chunk P

    # from step (last) to step (before last)
    between = elapsed[..., :, None] - elapsed[..., None, :]
    causal = torch.ones(chunk, chunk, dtype=torch.bool, device=values.device).tril()
    mixing = (read @ write.mT)[:, :, None] * between.masked_fill(~causal, -math.inf).exp()
    inside = mixing @ written

    to_end = (elapsed[..., -1:] - elapsed).exp()
    # B and C are shared by the heads: one product over heads and P together, not one for every
    # head.
    heads, size = written.shape[2], written.shape[-1]
    arriving = (written * to_end[..., None]).movedim(2, 3).flatten(3)  # S chunks chunk (heads P)
    contributions = (arriving.mT @ write).unflatten(2, (heads, size))  # S chunks heads P state
    chunk_decays = elapsed[..., -1].exp()[..., None, None]
    entering = []
    for kept, contribution in zip(chunk_decays.unbind(1), contributions.unbind(1), strict=True):
        entering.append(state)
        state = kept * state + contribution
    # S chunks chunk heads P
    carried = (read @ torch.stack(entering, dim=1).flatten(2, 3).mT).unflatten(3, (heads, size))
    carried = carried * elapsed.exp().mT[..., None]

    output = (inside.movedim(2, 3) + carried).flatten(1, 2)  # S T heads P
    return output[:, :steps], state
