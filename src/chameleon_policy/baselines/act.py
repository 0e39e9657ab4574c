"""ACT: action chunks from a conditional VAE (Zhao et al., 2023).

In training a posterior encodes the demonstrated chunk into a latent style z; in control z is zero.
A chunk is due at every control step, and the executor (`evaluate/executor.py`) averages all chunks
that reach the step: the temporal ensemble. The policy itself remembers nothing.
"""

from __future__ import annotations

from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from chameleon_policy.baselines.size import blocks_for, head_size, make_block, memory_size
from chameleon_policy.baselines.window import WindowPolicy
from chameleon_policy.policy import Features, MemoryState, PolicyConfig, Statistics
from chameleon_policy.policy.action_flow import sinusoid
from chameleon_policy.policy.attention import TransformerBlock
from chameleon_policy.policy.initialization import initialise
from chameleon_policy.policy.sampling import Source, starting_chunk
from chameleon_policy.policy.targets import Targets
from chameleon_policy.policy.visuomotor import Terms

LATENT = 32
"""Dimensions of the style."""
KL_WEIGHT = 10.0
"""Weight in the loss of the divergence between styles and a standard normal."""
POSTERIOR_BLOCKS = 4
POSTERIOR_SCALE = 0.01
"""Factor on the initial weights of the posterior's last layer."""


class Posterior(nn.Module):
    """The posterior q(z | chunk, proprioception) of the style of a demonstrated chunk."""

    def __init__(self, config: PolicyConfig, action: int) -> None:
        super().__init__()
        self.summary = nn.Parameter(torch.randn(config.width))
        self.action_in = nn.Linear(action, config.width)
        self.blocks = nn.ModuleList(make_block(config) for _ in range(POSTERIOR_BLOCKS))
        self.out = nn.Linear(config.width, 2 * LATENT)

    def forward(self, chunks: Tensor, body: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and log variance of the style (M LATENT each).

        `chunks` are normalised (M H A), `body` holds the proprioception tokens (M D).
        """
        positions = torch.arange(chunks.shape[1], dtype=torch.float32, device=chunks.device)
        actions = self.action_in(chunks) + sinusoid(positions, body.shape[-1]).to(chunks.dtype)
        summary = self.summary.to(actions.dtype).expand(len(chunks), 1, -1)
        tokens = torch.cat([summary, body[:, None].to(actions.dtype), actions], dim=1)
        for block in self.blocks:
            tokens = block(tokens)
        mean, log_variance = self.out(tokens[:, 0]).float().chunk(2, dim=-1)
        return mean, log_variance


class ACTPolicy(WindowPolicy):
    """ACT: a third of its blocks encodes observation and style, the others decode the chunk."""

    method: ClassVar[str] = "act"
    temporal_ensemble: ClassVar[float | None] = 0.01
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
        """Add the posterior, which only training needs."""
        posterior = Posterior(self.config, self.features.action)
        initialise(posterior)
        # At first all chunks get about the same style; otherwise a divergence of thousands would
        # drown the other terms of the loss.
        with torch.no_grad():
            posterior.out.weight.mul_(POSTERIOR_SCALE)
        self.posterior = posterior.to(self.device, self._precision)

    @classmethod
    def for_control(cls, config: PolicyConfig, features: Features, statistics: Statistics) -> Self:
        """Make a policy without the posterior."""
        return cls(config, features, statistics, with_posterior=False)

    @property
    def executed(self) -> int:
        """One: a chunk is due at every control step."""
        return 1

    # Training

    def _errors(self, context: Tensor, targets: Targets) -> tuple[Tensor, Terms]:
        """Return absolute errors of the chunks (M H A), and the divergence of their styles."""
        if self.posterior is None:
            raise ValueError(
                "this policy was loaded or built for control, without its posterior; "
                "call add_training_branch"
            )
        tokens = context[:, -1]
        mean, log_variance = self.posterior(targets.chunks, tokens[:, -2])
        style = mean + (log_variance / 2).exp() * torch.randn_like(mean)
        divergences = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(-1)
        real = targets.counted.any(-1)  # not padding
        divergence = (divergences * real).sum() / real.sum().clamp(min=1)
        errors = (self._decode(tokens, style).to(targets.chunks.dtype) - targets.chunks).abs()
        return errors, Terms(KL_WEIGHT * divergence, {"divergence": divergence})

    def _decode(self, tokens: Tensor, style: Tensor | None = None) -> Tensor:
        """Map event tokens of one frame (M N D) and a style (default: zero) to chunks (M H A)."""
        style = tokens.new_zeros(tokens.shape[0], LATENT) if style is None else style
        style_token = self.style(style.to(self._precision)).unsqueeze(1).to(tokens.dtype)
        encoded = torch.cat([tokens, style_token], dim=1)
        for block in self.encoder:
            encoded = block(encoded)
        chunk = self.queries.to(encoded.dtype).expand(tokens.shape[0], -1, -1)
        for block in self.decoder:
            assert isinstance(block, TransformerBlock)
            chunk = block(chunk, block.keys_and_values(encoded))
        return self.action_out(self.norm(chunk))

    # Control

    def _sample(
        self,
        state: MemoryState,
        steps: int,
        source: Source | Tensor,
        generator: torch.Generator | None,
    ) -> Tensor:
        """Return the decoded chunk with style zero; nothing is drawn, and one step is enough."""
        shape = (state.working.shape[0], self.features.horizon, self.features.action)
        # Nothing starts from noise here, but bad options are refused as by the other methods.
        starting_chunk(shape, state.working, steps, source, generator)
        return self._decode(state.working[:, -1].to(self._precision))
