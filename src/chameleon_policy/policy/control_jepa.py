"""Control-JEPA: the working state is trained to predict the control contexts of later steps.

| symbol         | name here        | shape   | equation |
|----------------|------------------|---------|----------|
| h_t            | working          | B T D   | 10       |
| eta_k          | horizon_tokens   | K D     | 12       |
| u-hat_{t+k}    | predicted        | K B T D | 12       |
| u-tilde_{t+k}  | targets          | K B T D | 13       |
| L_var          | variance         | scalar  | 13       |

Training only: nothing here is part of the parameter budget or of an exported policy.

Decisions
- The target branch is an EMA copy of the last layer's `ControlContext`, applied to the online bound
  tokens under stop-gradient.
- Targets after the end of an episode are masked. A horizon that no episode of the batch reaches is
  left out of the weighted mean.
- The variance term is computed per horizon, over the batch's valid predictions, and averaged over
  the horizons, so that predictions that differ only between horizons count as collapsed.
"""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chameleon_policy.policy.attention import two_layer_mlp
from chameleon_policy.policy.config import PolicyConfig
from chameleon_policy.policy.memory import ControlContext

# Added under the square root, so that the gradient stays finite at zero variance.
VARIANCE_EPSILON = 1e-4


class ControlJEPA(nn.Module):
    """L_CJEP of Eq. 13 with its predictor g, horizon embeddings and EMA target branch."""

    def __init__(self, config: PolicyConfig, online: ControlContext) -> None:
        super().__init__()
        self.objective = config.objective
        self.predictor = two_layer_mlp(2 * config.width, config.width)
        horizons = torch.tensor(config.objective.horizons)
        weights = torch.tensor(config.objective.horizon_weights, dtype=torch.float64)
        self.horizon_tokens = nn.Parameter(0.02 * torch.randn(len(horizons), config.width))
        self.target = copy.deepcopy(online).requires_grad_(False)
        self.horizons: Tensor
        self.horizon_weights: Tensor
        self.register_buffer("horizons", horizons, persistent=False)
        self.register_buffer("horizon_weights", weights, persistent=False)

    @torch.no_grad()
    def update_target(self, online: ControlContext) -> None:
        """Move the target branch towards the online one; call it once per optimizer step."""
        if self.horizon_tokens.dtype.itemsize < torch.float32.itemsize:
            raise ValueError(
                f"update_target: steps of 1 % are lost in {self.horizon_tokens.dtype}; keep the "
                "weights in float32 and train under torch.autocast"
            )
        for target, source in zip(self.target.parameters(), online.parameters(), strict=True):
            target.lerp_(source.to(target.dtype), 1 - self.objective.target_momentum)

    def forward(self, working: Tensor, bound: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the alignment and variance terms of Eq. 13.

        Takes h (B T D), the last layer's bound tokens (B T N D) and the mask of valid steps (B T).
        """
        with torch.no_grad():
            contexts = self.target(bound.detach())
        kind = torch.promote_types(working.dtype, torch.float32)
        predicted = self._predict(working).to(kind)
        time = working.shape[1]
        later = torch.arange(time, device=working.device) + self.horizons[:, None]  # K T
        ends, later = later >= time, later.clamp(max=time - 1)
        pairs = valid & valid[:, later].transpose(0, 1) & ~ends[:, None]  # K B T
        count = pairs.sum((1, 2))
        reached, count = (count > 0).to(kind), count.clamp(min=1).to(kind)
        pairs = pairs.to(kind)

        targets = contexts[:, later].transpose(0, 1).to(kind)  # K B T D
        per_pair = F.smooth_l1_loss(predicted, targets, reduction="none").mean(-1)
        weights = self.horizon_weights.to(kind) * reached
        alignment = (weights * (per_pair * pairs).sum((1, 2)) / count).sum()
        variance = (reached * self._variance_hinge(predicted, pairs.unsqueeze(-1), count)).sum()
        smallest = min(self.objective.horizon_weights)
        return alignment / weights.sum().clamp(min=smallest), variance / reached.sum().clamp(min=1)

    def _predict(self, working: Tensor) -> Tensor:
        """Compute u-hat = g([h, eta_k]) of Eq. 12 for all horizons (K B T D)."""
        first: nn.Linear = self.predictor[0]  # type: ignore[assignment]
        # Split by inputs, so that the product with h is computed once for all horizons.
        from_working, from_horizon = first.weight.chunk(2, dim=1)
        of_horizons = F.linear(self.horizon_tokens, from_horizon, first.bias)
        return self.predictor[1:](F.linear(working, from_working) + of_horizons[:, None, None])

    def _variance_hinge(self, predicted: Tensor, pairs: Tensor, count: Tensor) -> Tensor:
        """Compute mean(max(0, gamma - std)) over the valid predictions of each horizon (K)."""
        mean = (predicted * pairs).sum((1, 2), keepdim=True) / count[:, None, None, None]
        spread = ((predicted - mean).square() * pairs).sum((1, 2)) / count[:, None]
        return F.relu(self.objective.variance_target - (spread + VARIANCE_EPSILON).sqrt()).mean(-1)
