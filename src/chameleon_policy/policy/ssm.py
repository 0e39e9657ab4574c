"""The selective state-space layer that carries memory through time, Mamba2-style, in plain PyTorch.

One layer with two modes that give the same numbers: `scan` takes a whole sequence (training),
`step` one time step (control). Both take a state and return the next one.

| symbol  | name here   | shape           | meaning                                                |
|---------|-------------|-----------------|--------------------------------------------------------|
| x_t     | values      | S T heads P     | the input of the recurrence, after the convolution     |
| Delta_t | rates       | S T heads       | strength of writing at this step, and speed of time    |
| A       | decay       | heads           | negative: a step multiplies the state by e^(Delta_t A) |
| B_t     | write       | S T state       | where in the state x_t is written                      |
| C_t     | read        | S T state       | where in the state the output is read                  |
| D       | skip        | heads           | the part of x_t that passes straight through           |
| state_t | state.ssm   | S heads P state | e^(Delta_t A) state_{t-1} + Delta_t x_t (outer) B_t    |
| y_t     | output      | S T heads P     | state_t C_t + D x_t                                    |

S: independent streams (any leading shape), T: time, P: channels of a head.

Decisions
- One group: all heads share B_t and C_t, as the parameter budget requires.
- Half-lives at initialisation are spread evenly in log over the heads. They hold for the mean of
  Delta_t over inputs of unit variance, without a limit.
- Delta_t depends strongly on the input from the start (`selectivity`), so that some heads write a
  brief event louder than the steps around it. The cost: on a constant input a head keeps one draw
  of Delta_t, and its half-life differs from the nominal one (docs/deviations.md has measurements).
- A layer that must forget has a limit, `half_life_limit` = H_max: Delta_t >= ln 2 / (H_max |A|) in
  every head. It may forget faster, never slower. Mamba2's `dt_limit` bounds Delta_t itself; this
  one bounds the decay Delta_t A.
- Of the two factors in Delta_t A, Delta_t is sqrt(1 - a^2) at its bias, where a is the head's decay
  per step. Mamba2's own choice writes the longest memories faintest.
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
    """The state of one layer between time steps; leading dimensions are those of the streams."""

    convolution: Tensor
    """The last inputs of the convolution, ... x (width - 1) x channels."""
    ssm: Tensor
    """The recurrent state, ... x heads x P x state."""


def expected_rate(bias: Tensor, selectivity: float) -> Tensor:
    """Compute the mean of softplus(bias + selectivity z) over standard normal z."""
    z = torch.linspace(-6, 6, 241, dtype=bias.dtype, device=bias.device)
    density = torch.softmax(-z.square() / 2, dim=0)
    return (F.softplus(bias[:, None] + selectivity * z) * density).sum(-1)


class SelectiveSSM(nn.Module):
    """A Mamba2 layer: projection, convolution, selective recurrence, gated RMSNorm, projection."""

    def __init__(self, width: int, config: SSMConfig) -> None:
        super().__init__()
        self.config = config
        self.inner = config.expand * width
        self.heads = self.inner // config.head_dim
        # x, B and C pass through the convolution together
        self.channels = self.inner + 2 * config.state
        self.in_projection = nn.Linear(width, self.inner + self.channels + self.heads, bias=False)
        # Like a depthwise Conv1d, width last: the last tap belongs to the newest input.
        bound = 1 / math.sqrt(config.convolution)
        taps = torch.empty(self.channels, config.convolution).uniform_(-bound, bound)
        self.convolution_weight = nn.Parameter(taps)
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
        selectivity = self.config.selectivity
        self.rate_bias.copy_(bias)
        self.log_decay.copy_(torch.log(decay_exponent / expected_rate(bias, selectivity)))
        std = selectivity / math.sqrt(self.in_projection.in_features)
        self.in_projection.weight[-self.heads :].normal_(std=std)

    @property
    def half_lives(self) -> Tensor:
        """Nominal half-life of every head in steps, without a limit."""
        rates = expected_rate(self.rate_bias, self.config.selectivity)
        return math.log(2) / (rates * self.log_decay.exp())

    def least_rates(self) -> Tensor | None:
        """Compute the lower bound ln 2 / (H_max |A|) of Delta_t per head; None without a limit."""
        limit, decay = self.config.half_life_limit, self.log_decay.exp()
        precise = torch.promote_types(decay.dtype, torch.float32)
        return None if limit is None else math.log(2) / (limit * decay.to(precise))

    def initial_state(self, *streams: int) -> SSMState:
        """Make the state before the first step, for streams of the given leading shape."""
        config, dtype = self.config, torch.promote_types(self.skip.dtype, torch.float32)
        convolution = (*streams, config.convolution - 1, self.channels)
        ssm = (*streams, self.heads, config.head_dim, config.state)
        return SSMState(self.skip.new_zeros(convolution), self.skip.new_zeros(ssm, dtype=dtype))

    def forward(
        self, sequence: Tensor, state: SSMState | None, *, keep_state: bool = True
    ) -> tuple[Tensor, SSMState | None]:
        """Run over a sequence (... T width): outputs of the same shape and the state after it.

        A single step runs through `step`, more through `scan`. Without a state the sequence is a
        beginning; without `keep_state` the state after it is None.
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
        """Run all time steps at once: (... T width) to (... T width) and the state after them."""
        streams = sequence.shape[:-2]
        gate, values, write, read, rates, history = self._inputs(sequence.flatten(0, -3), state)
        decay, ssm = -self.log_decay.exp(), state.ssm.flatten(0, len(streams) - 1)
        output, ssm = chunked_scan(values, rates, decay, write, read, ssm, self.config.chunk)
        output = self._outputs(output + self.skip[:, None] * values, gate)
        after = SSMState(history.unflatten(0, streams), ssm.unflatten(0, streams))
        return output.unflatten(0, streams), after

    def step(self, current: Tensor, state: SSMState) -> tuple[Tensor, SSMState]:
        """Run one time step: (... width) to (... width) and the state after it."""
        streams, sequence = current.shape[:-1], current.flatten(0, -2).unsqueeze(1)
        gate, values, write, read, rates, history = self._inputs(sequence, state)
        values, write, read, rates = values[:, 0], write[:, 0], read[:, 0], rates[:, 0]
        kept = torch.exp(-rates * self.log_decay.exp())[..., None, None]
        ssm = kept * state.ssm.flatten(0, len(streams) - 1)
        ssm = ssm + (rates[..., None] * values)[..., None] * write[:, None, None, :]
        output = torch.matmul(ssm, read[:, None, :, None].to(ssm.dtype)).squeeze(-1)
        output = output + self.skip[:, None] * values
        output = self._outputs(output.unsqueeze(1), gate).squeeze(1)
        after = SSMState(history.unflatten(0, streams), ssm.unflatten(0, streams))
        return output.unflatten(0, streams), after

    def _inputs(self, sequence: Tensor, state: SSMState) -> tuple[Tensor, ...]:
        """Compute gate, x, B, C and Delta of (S T width), and the convolution's next history."""
        gate, mixed, rates = self.split_inputs(sequence)
        history = state.convolution.flatten(0, -3).to(mixed.dtype)
        padded = torch.cat([history, mixed], dim=1)
        steps = mixed.shape[1]
        convolved: Tensor = self.convolution_bias
        for i, tap in enumerate(self.convolution_weight.unbind(-1)):
            convolved = convolved + padded[:, i : i + steps] * tap
        values, write, read = self.split_convolved(convolved)
        history = padded[:, steps:].to(state.convolution.dtype, copy=True)
        return gate, values, write, read, self._rates(rates), history

    def split_inputs(self, sequence: Tensor) -> tuple[Tensor, ...]:
        """Project (... width) to the gate, the inputs of the convolution, and Delta's inputs."""
        sizes = [self.inner, self.channels, self.heads]
        return self.in_projection(sequence).split(sizes, dim=-1)

    def split_convolved(self, convolved: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Split the convolution's outputs (... channels) into x (... heads P), B and C."""
        sizes = [self.inner, self.config.state, self.config.state]
        values, write, read = F.silu(convolved).split(sizes, dim=-1)
        return values.unflatten(-1, (self.heads, self.config.head_dim)), write, read

    def _rates(self, projected: Tensor) -> Tensor:
        """Compute Delta = max(softplus(projected + bias), ln 2 / (H_max |A|)), (... heads)."""
        # Decays are products of many factors close to one, which need float32 or finer.
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
    """Compute the recurrence of this file's table without D, by matrix products over time chunks.

    Within a chunk the recurrence is a causal matrix product; only the state passes from chunk to
    chunk. Returns the outputs (S T heads P) and the state after the last step.
    """
    steps = values.shape[1]
    chunk = math.ceil(steps / math.ceil(steps / chunk))  # even chunks, so that little is padded
    padding = -steps % chunk
    if padding:  # a padded step has Delta = 0: it neither writes nor lets time pass
        values, rates, write, read = (
            F.pad(tensor, (0, 0) * (tensor.dim() - 2) + (0, padding))
            for tensor in (values, rates, write, read)
        )
    values, rates, write, read = (
        tensor.unflatten(1, (-1, chunk)).to(state.dtype) for tensor in (values, rates, write, read)
    )  # S chunks chunk ...
    # S chunks heads chunk: log of the decay since the chunk began
    elapsed = (rates * decay).cumsum(2).movedim(-1, 2)
    written = (values * rates[..., None]).movedim(3, 2)  # S chunks heads chunk P

    # from step (last) to step (before last)
    between = elapsed[..., :, None] - elapsed[..., None, :]
    causal = torch.ones(chunk, chunk, dtype=torch.bool, device=values.device).tril()
    mixing = (read @ write.mT)[:, :, None] * between.masked_fill(~causal, -math.inf).exp()
    inside = mixing @ written

    to_end = (elapsed[..., -1:] - elapsed).exp()
    # All heads share B and C, so one product covers heads and P together.
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
