"""ACT: action chunks from a conditional VAE, and plans of several steps averaged (Zhao et al.,
2023).

In training a posterior encodes the demonstrated chunk into a latent style z; in control z is zero.
Every control step makes a plan, and what is done is a mean of all plans that reach that far, the
oldest counting most: the plans of the last H steps are this method's memory, though nothing of what
was seen is in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from chameleon_policy.baselines.size import blocks_for, head_size, make_block, memory_size
from chameleon_policy.baselines.window import WindowPolicy
from chameleon_policy.policy import Features, MemoryState, Observation, PolicyConfig, Statistics
from chameleon_policy.policy.action_flow import sinusoid
from chameleon_policy.policy.attention import TransformerBlock
from chameleon_policy.policy.initialization import initialise
from chameleon_policy.policy.sampling import Source, starting_chunk
from chameleon_policy.policy.targets import Targets
from chameleon_policy.policy.visuomotor import Terms

LATENT = 32
"""Numbers of a style."""
KL_WEIGHT = 10.0
"""Of the divergence of styles from a standard normal, in the loss."""
POSTERIOR_BLOCKS = 4
POSTERIOR_START = 0.01
"""Size of the posterior's last layer at the beginning, as a share of the usual."""
AGE_WEIGHT = 0.01
"""A plan of age a counts exp(0.01 a)."""


class Posterior(nn.Module):
    """q(z | chunk, proprioception): mean and log variance of the style of a demonstrated chunk."""

    def __init__(self, config: PolicyConfig, action: int) -> None:
        super().__init__()
        self.summary = nn.Parameter(torch.randn(config.width))
        self.action_in = nn.Linear(action, config.width)
        self.blocks = nn.ModuleList(make_block(config) for _ in range(POSTERIOR_BLOCKS))
        self.out = nn.Linear(config.width, 2 * LATENT)

    def forward(self, chunks: Tensor, body: Tensor) -> tuple[Tensor, Tensor]:
        """Normalised chunks (M H A) and proprioception tokens (M D) to mean and log variance (M
        latent).
        """
        places = torch.arange(chunks.shape[1], dtype=torch.float32, device=chunks.device)
        actions = self.action_in(chunks) + sinusoid(places, body.shape[-1]).to(chunks.dtype)
        tokens = torch.cat(
            [
                self.summary.to(actions.dtype).expand(len(chunks), 1, -1),
                body[:, None].to(actions.dtype),
                actions,
            ],
            1,
        )
        for block in self.blocks:
            tokens = block(tokens)
        mean, log_variance = self.out(tokens[:, 0]).float().chunk(2, dim=-1)
        return mean, log_variance


class ACTPolicy(WindowPolicy):
    """A third of the blocks encodes observation and style, the others decode the chunk."""

    method: ClassVar[str] = "act"
    frames: ClassVar[int] = 1
    few_steps: ClassVar[int] = 1
    training_only: ClassVar[tuple[str, ...]] = ("posterior.",)

    def __init__(
        self,
        config: PolicyConfig,
        features: Features,
        statistics: Statistics | None = None,
        *,
        with_posterior: bool = True,
    ) -> None:
        super().__init__(config, features, statistics)
        blocks = max(2, blocks_for(config, memory_size(config) + head_size(config, features)))
        self.style = nn.Linear(LATENT, config.width)
        self.encoder = nn.ModuleList(make_block(config) for _ in range(blocks // 3 or 1))
        self.decoder = nn.ModuleList(make_block(config) for _ in range(blocks - len(self.encoder)))
        self.queries = nn.Parameter(torch.randn(features.horizon, config.width))
        self.norm = nn.LayerNorm(config.width)
        self.action_out = nn.Linear(config.width, features.action)
        initialise(self)
        self.posterior: Posterior | None = None
        if with_posterior:
            self.add_training_branch()

    def add_training_branch(self) -> None:
        """Add the posterior."""
        posterior = Posterior(self.config, self.features.action)
        initialise(posterior)
        # every chunk begins with about the same style: a divergence of thousands would drown the
        # rest
        with torch.no_grad():
            posterior.out.weight.mul_(POSTERIOR_START)
        self.posterior = posterior.to(self.device, self._precision)

    @classmethod
    def for_control(
        cls, config: PolicyConfig, features: Features, statistics: Statistics
    ) -> ACTPolicy:
        """A new policy without the posterior."""
        return cls(config, features, statistics, with_posterior=False)

    @property
    def executed(self) -> int:
        """One: every step has a plan of its own."""
        return 1

    # Training

    def _errors(self, context: Tensor, targets: Targets) -> tuple[Tensor, Terms]:
        """Absolute errors of the chunk, and the divergence of the style from a standard normal."""
        if self.posterior is None:
            raise ValueError(
                "this policy was loaded or built for control, without its posterior; call add_training_branch"
            )
        tokens = context[:, -1]
        mean, log_variance = self.posterior(targets.chunks, tokens[:, -2])
        style = mean + (log_variance / 2).exp() * torch.randn_like(mean)
        divergences = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(-1)
        real = targets.counted.any(-1)  # not padding
        divergence = (divergences * real).sum() / real.sum().clamp(min=1)
        errors = (self._plan(tokens, style).to(targets.chunks.dtype) - targets.chunks).abs()
        return errors, Terms(KL_WEIGHT * divergence, {"divergence": divergence})

    def _plan(self, tokens: Tensor, style: Tensor | None = None) -> Tensor:
        """Event tokens of one frame (M N D) and a style, or none, to a normalised chunk (M H A)."""
        style = tokens.new_zeros(tokens.shape[0], LATENT) if style is None else style
        seen = torch.cat(
            [tokens, self.style(style.to(self._precision)).unsqueeze(1).to(tokens.dtype)], dim=1
        )
        for block in self.encoder:
            seen = block(seen)
        chunk = self.queries.to(seen.dtype).expand(tokens.shape[0], -1, -1)
        for block in self.decoder:
            assert isinstance(block, TransformerBlock)
            chunk = block(chunk, block.keys_and_values(seen))
        return self.action_out(self.norm(chunk))

    # Control

    def _initial_memory(self, batch_size: int) -> tuple[Any, ...]:
        """The plans of the last H steps by age (B H H A), and how many were made (B)."""
        shape = (batch_size, self.features.horizon, self.features.horizon, self.features.action)
        made = torch.zeros(batch_size, dtype=torch.int64, device=self.device)
        return (
            {"plans": torch.zeros(shape, dtype=self._precision, device=self.device), "made": made},
        )

    def advance(self, observation: Observation, state: MemoryState) -> MemoryState:
        """Look, and make a plan."""
        remembered = self._remember(self.event_tokens(observation), None, None, keep=True)
        plans = (
            self._plan(remembered.context.flatten(0, 2))
            .unflatten(0, remembered.context.shape[:2])
            .flip(1)
        )
        before = state.layers[0]
        made = before["made"] + plans.shape[1]
        plans = torch.cat([plans.to(self._precision), before["plans"]], dim=1)[
            :, : self.features.horizon
        ]
        return replace(
            self._memory_after(remembered, state), layers=({"plans": plans, "made": made},)
        )

    def drop_plans(self, state: MemoryState, robots: Sequence[int]) -> MemoryState:
        """The plans that are made from now on count alone."""
        plans = state.layers[0]
        chosen = torch.tensor(robots, dtype=torch.int64, device=self.device)
        return replace(state, layers=({**plans, "made": plans["made"].index_fill(0, chosen, 0)},))

    def _sample(
        self,
        state: MemoryState,
        steps: int,
        source: Source | Tensor,
        generator: torch.Generator | None,
    ) -> Tensor:
        """The mean of what all plans say of each of the next H steps; nothing is drawn, and one
        step is enough.
        """
        plans, made = state.layers[0]["plans"], state.layers[0]["made"]  # B age H A
        # Nothing begins with noise here, but what every other method refuses is refused.
        starting_chunk((plans.shape[0], *plans.shape[2:]), plans, steps, source, generator)
        # An exported program cannot look at values and stop; whoever runs one finds that its
        # actions are not numbers.
        if not torch.compiler.is_exporting() and bool((made == 0).any()):
            raise ValueError(
                "act: the plans were dropped, and nothing was observed since; call observe first"
            )
        horizon = plans.shape[1]
        age = torch.arange(horizon, device=plans.device)[:, None]
        # of a coming step in a plan of that age
        place = age + torch.arange(horizon, device=plans.device)
        said = plans[:, age, place.clamp(max=horizon - 1)]  # B age H A
        counted = (place < horizon) & (age < made[:, None, None])
        weight = (counted * torch.exp(AGE_WEIGHT * age)).to(plans.dtype).unsqueeze(-1)
        return (said * weight).sum(1) / weight.sum(1)
