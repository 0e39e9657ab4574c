"""The action head: rectified flow from noise to an action chunk, conditioned on the working state.

| symbol  | name here      | shape   | equation |
|---------|----------------|---------|----------|
| h_t     | working        | B D     | 10       |
| C_t     | policy tokens  | B n_c D | 14       |
| A_0     | (drawn)        | B H A   | 15       |
| tau     | flow_time      | B       | 15       |
| A_tau   | noised         | B H A   | 15       |
| A-hat   | endpoint(...)  | B H A   | 16       |

Decisions
- Time runs from tau = 0 (noise) to tau = 1 (action): A_tau = (1 - tau) A_0 + tau A.
- The network predicts the clean endpoint. An Euler step with n steps left is A <- A + (A-hat - A) /
  n, so the last step lands on the endpoint.
- Policy tokens attend to one another; action tokens attend to policy tokens and to one another. The
  condition never depends on the noise, so its keys and values are computed once per chunk.
- Flow time is added to the action tokens; their position in the chunk is a fixed sinusoid.
"""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor, nn

from chameleon_policy.policy.attention import TransformerBlock
from chameleon_policy.policy.config import PolicyConfig
from chameleon_policy.policy.sampling import Source, starting_chunk

# Flow time lies in [0, 1]; the periods of the sinusoid suit numbers of this order.
FLOW_TIME_SCALE = 1000.0


def sinusoid(positions: Tensor, width: int) -> Tensor:
    """Compute sine and cosine features (... width) of positions (...) in float32 or finer."""
    half = width // 2
    exponents = torch.arange(half, dtype=positions.dtype, device=positions.device) / half
    angles = positions[..., None] * torch.exp(-math.log(10_000.0) * exponents)
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


def _at_least_float32(tensor: Tensor) -> torch.dtype:
    """Return a type for flow time; in bfloat16 it would be off by periods of the sinusoid."""
    return torch.promote_types(tensor.dtype, torch.float32)


class ActionFlow(nn.Module):
    """Phi_act of Eq. 1: a transformer F_theta(A_tau, tau, C_t) and the Euler sampler around it."""

    def __init__(self, config: PolicyConfig, action: int, horizon: int) -> None:
        super().__init__()
        self.width, self.action, self.horizon = config.width, action, horizon
        self.policy_tokens = nn.Linear(
            config.width, config.policy_tokens * config.width, bias=False
        )
        self.action_in = nn.Linear(action, config.width)
        hidden = config.feedforward_ratio * config.width
        self.flow_time = nn.Sequential(
            nn.Linear(config.width, hidden), nn.GELU(), nn.Linear(hidden, config.width)
        )
        self.blocks = nn.ModuleList(
            TransformerBlock(config.width, config.heads, config.feedforward_ratio)
            for _ in range(config.head_layers)
        )
        self.norm = nn.LayerNorm(config.width)
        self.action_out = nn.Linear(config.width, action)

    def condition(self, working: Tensor) -> list[Tensor]:
        """Compute C_t = W_h h_t, Eq. 14, as key-values of every block: (B D) to (B n_c 2D) each."""
        tokens = self.policy_tokens(working).unflatten(-1, (-1, self.width))
        *blocks, last = self._blocks
        context = []
        for block in blocks:
            tokens, own = block.forward_and_cache(tokens)
            context.append(own)
        return [*context, last.keys_and_values(tokens)]

    @property
    def _blocks(self) -> list[TransformerBlock]:
        return list(self.blocks)  # type: ignore[arg-type]

    def time_token(self, flow_time: Tensor, dtype: torch.dtype) -> Tensor:
        """Encode flow times (B) as tokens (B D)."""
        return self.flow_time(sinusoid(FLOW_TIME_SCALE * flow_time, self.width).to(dtype))

    def positions(self, like: Tensor) -> Tensor:
        """Encode the position of every action in the chunk (H D), in the type of `like`."""
        index = torch.arange(self.horizon, device=like.device, dtype=like.dtype)
        return sinusoid(index, self.width)

    def endpoint(self, noised: Tensor, flow_time: Tensor, context: list[Tensor]) -> Tensor:
        """Compute A-hat = F_theta(A_tau, tau, C_t), Eq. 16: (B H A) and (B) to (B H A)."""
        time_token = self.time_token(flow_time, noised.dtype).unsqueeze(-2)
        tokens = self.action_in(noised) + self.positions(flow_time).to(noised.dtype) + time_token
        for block, cached in zip(self._blocks, context, strict=True):
            tokens = block(tokens, cached)
        return self.action_out(self.norm(tokens))

    def forward(self, working: Tensor, chunk: Tensor, flow_time_power: float) -> Tensor:
        """Predict the clean chunk from a noised one, Eqs. 15-16: (B D) and (B H A) to (B H A)."""
        uniform = torch.rand(len(chunk), dtype=_at_least_float32(chunk), device=chunk.device)
        flow_time = uniform**flow_time_power
        mix = flow_time[:, None, None].to(chunk.dtype)
        noised = (1 - mix) * torch.randn_like(chunk) + mix * chunk
        return self.endpoint(noised, flow_time, self.condition(working))

    def source(
        self, working: Tensor, steps: int, source: Source | Tensor, generator: Generator | None
    ) -> Tensor:
        """Draw A_0 (B H A) for working states (B D)."""
        shape = (working.shape[0], self.horizon, self.action)
        return starting_chunk(shape, working, steps, source, generator)

    def sample(
        self, working: Tensor, steps: int, source: Source | Tensor, generator: Generator | None
    ) -> Tensor:
        """Sample normalised action chunks (B H A) for working states (B D) by Euler integration."""
        chunk = self.source(working, steps, source, generator)
        context = self.condition(working)
        # Not len(chunk), which would fix the batch size of an exported program.
        kind, batch = _at_least_float32(chunk), chunk.shape[0]
        for step in range(steps):
            flow_time = torch.full((batch,), step / steps, dtype=kind, device=chunk.device)
            chunk = self.euler_step(chunk, flow_time, context, steps - step)
        return chunk

    def euler_step(
        self, chunk: Tensor, flow_time: Tensor, context: list[Tensor], left: int | Tensor
    ) -> Tensor:
        """Compute A + (A_hat - A) / left (B H A), with the number of steps left of each chunk."""
        return chunk + (self.endpoint(chunk, flow_time, context) - chunk) / left
