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
  n, so the last step
  lands on the endpoint.
- Policy tokens see one another; action tokens see policy tokens and one another. The condition thus
  never depends on the
  noise, and its keys and values are computed once per chunk instead of once per Euler step.
- Flow time is added to the action tokens; their place in the chunk is a fixed sinusoid.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from chameleon_policy.policy.attention import TransformerBlock
from chameleon_policy.policy.config import PolicyConfig

Source = Literal["gaussian", "zero"]

# Flow time lies in [0, 1]; the sinusoid's periods are made for numbers of this order.
FLOW_TIME_SCALE = 1000.0


def sinusoid(positions: Tensor, width: int) -> Tensor:
    """Compute sine and cosine features (... width) of positions (...), which should be float32 or
    finer.
    """
    half = width // 2
    exponents = torch.arange(half, dtype=positions.dtype, device=positions.device) / half
    angles = positions[..., None] * torch.exp(-math.log(10_000.0) * exponents)
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


def starting_chunk(
    shape: tuple[int, int, int],
    like: Tensor,
    steps: int,
    source: Source | Tensor,
    generator: torch.Generator | None,
) -> Tensor:
    """Return the noise that sampling begins with (B H A), in the type of `like`: drawn, zero, or as
    given.
    """
    if not isinstance(steps, int) or steps < 1:
        raise ValueError(
            f"steps: expected a whole number of sampling steps, at least 1, got {steps!r}"
        )
    if isinstance(source, Tensor):
        if tuple(source.shape) != shape:
            raise ValueError(
                f"source: expected noise of the shape {shape}, got {tuple(source.shape)}"
            )
        return source.to(like)
    if source == "gaussian":
        return torch.randn(shape, dtype=like.dtype, device=like.device, generator=generator)
    if source == "zero":
        return like.new_zeros(shape)
    raise ValueError(
        f"source: expected one of {', '.join(get_args(Source))}, or a tensor, got {source!r}"
    )


def _at_least_float32(tensor: Tensor) -> torch.dtype:
    """Flow time in bfloat16 would be off by whole periods of the sinusoid."""
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
        self.flow_time = nn.Sequential(
            nn.Linear(config.width, config.feedforward_ratio * config.width),
            nn.GELU(),
            nn.Linear(config.feedforward_ratio * config.width, config.width),
        )
        self.blocks = nn.ModuleList(
            TransformerBlock(config.width, config.heads, config.feedforward_ratio)
            for _ in range(config.head_layers)
        )
        self.norm = nn.LayerNorm(config.width)
        self.action_out = nn.Linear(config.width, action)

    def condition(self, working: Tensor) -> list[Tensor]:
        """Compute C_t = W_h h_t, Eq. 14, as every block's keys and values: (B D) to (B n_c 2D) for
        each block.
        """
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

    def places(self, like: Tensor) -> Tensor:
        """Encode where in the chunk an action stands (H D), in the type of `like` and on its
        device.
        """
        return sinusoid(
            torch.arange(self.horizon, device=like.device, dtype=like.dtype), self.width
        )

    def endpoint(self, noised: Tensor, flow_time: Tensor, context: list[Tensor]) -> Tensor:
        """Compute A-hat = F_theta(A_tau, tau, C_t), Eq. 16: (B H A) and (B) to (B H A)."""
        time_token = self.time_token(flow_time, noised.dtype).unsqueeze(-2)
        tokens = self.action_in(noised) + self.places(flow_time).to(noised.dtype) + time_token
        for block, seen in zip(self._blocks, context, strict=True):
            tokens = block(tokens, seen)
        return self.action_out(self.norm(tokens))

    def forward(self, working: Tensor, chunk: Tensor, flow_time_power: float) -> Tensor:
        """Predict the clean chunk from a randomly noised one, Eqs. 15-16: (B D) and the normalised
        (B H A) to (B H A).
        """
        flow_time = (
            torch.rand(len(chunk), dtype=_at_least_float32(chunk), device=chunk.device)
            ** flow_time_power
        )
        mix = flow_time[:, None, None].to(chunk.dtype)
        noised = (1 - mix) * torch.randn_like(chunk) + mix * chunk
        return self.endpoint(noised, flow_time, self.condition(working))

    def source(
        self,
        working: Tensor,
        steps: int,
        source: Source | Tensor,
        generator: torch.Generator | None,
    ) -> Tensor:
        """Draw A_0 (B H A) for working states (B D)."""
        return starting_chunk(
            (working.shape[0], self.horizon, self.action), working, steps, source, generator
        )

    def sample(
        self,
        working: Tensor,
        steps: int,
        source: Source | Tensor,
        generator: torch.Generator | None,
    ) -> Tensor:
        """Sample normalised action chunks (B H A) for working states (B D), by Euler integration
        from the source.
        """
        chunk = self.source(working, steps, source, generator)
        context = self.condition(working)
        for step in range(steps):
            flow_time = torch.full(
                (chunk.shape[0],), step / steps, dtype=_at_least_float32(chunk), device=chunk.device
            )
            chunk = chunk + (self.endpoint(chunk, flow_time, context) - chunk) / (steps - step)
        return chunk
