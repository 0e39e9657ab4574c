"""Control-JEPA: the working state is trained to predict the control contexts that later steps will use.

| symbol         | name here        | shape   | equation |
|----------------|------------------|---------|----------|
| h_t            | working          | B T D   | 10       |
| eta_k          | horizon_tokens   | K D     | 12       |
| u-hat_{t+k}    | predicted        | B T-k D | 12       |
| u-tilde_{t+k}  | contexts         | B T-k D | 13       |
| L_var          | variance         | scalar  | 13       |

Training only: nothing here is part of the parameter budget or of an exported policy.

Decisions
- The target branch is an EMA copy of the last layer's `ControlContext`, applied to the online bound tokens under
  stop-gradient.
- Targets behind the end of an episode are masked, never wrapped. A horizon that no episode of the batch reaches leaves
  the weighted mean.
- The variance term is taken per horizon, over the batch's valid predictions, and averaged over the horizons: predictions
  that differ only from horizon to horizon are collapsed too.
"""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chameleon_policy.policy.attention import two_layer_mlp
from chameleon_policy.policy.config import PolicyConfig
from chameleon_policy.policy.memory import ControlContext

# Inside the square root of the standard deviation, so that its gradient stays finite at zero variance.
VARIANCE_EPSILON = 1e-4


class ControlJEPA(nn.Module):
    """L_CJEP of Eq. 13 with its predictor g, horizon embeddings and EMA target branch."""

    def __init__(self, config: PolicyConfig, online: ControlContext) -> None:
        super().__init__()
        self.objective = config.objective
        self.predictor = two_layer_mlp(2 * config.width, config.width)
        self.horizon_tokens = nn.Parameter(0.02 * torch.randn(len(config.objective.horizons), config.width))
        self.target = copy.deepcopy(online).requires_grad_(False)

    @torch.no_grad()
    def update_target(self, online: ControlContext) -> None:
        """Move the target branch towards the online one; once per optimizer step."""
        if self.horizon_tokens.dtype.itemsize < torch.float32.itemsize:
            raise ValueError(
                f"update_target: steps of 1 % are lost in {self.horizon_tokens.dtype}; keep the weights in float32 and "
                "train under torch.autocast"
            )
        for target, source in zip(self.target.parameters(), online.parameters(), strict=True):
            target.lerp_(source.to(target.dtype), 1 - self.objective.target_momentum)

    def forward(self, working: Tensor, bound: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
        """Alignment and variance terms of Eq. 13 from h (B T D), the last layer's bound tokens (B T N D) and the mask."""
        with torch.no_grad():
            contexts = self.target(bound.detach())
        objective, time = self.objective, working.shape[1]
        alignment = variance = working.new_zeros((), dtype=torch.promote_types(working.dtype, torch.float32))
        weight_sum, horizon_count = torch.zeros_like(alignment), torch.zeros_like(alignment)
        horizons = zip(objective.horizons, objective.horizon_weights, self.horizon_tokens, strict=True)
        for horizon, weight, token in horizons:
            if horizon >= time:
                continue
            now = working[:, :-horizon]
            predicted = self.predictor(torch.cat([now, token.to(now.dtype).expand_as(now)], dim=-1)).to(alignment.dtype)
            pairs = (valid[:, :-horizon] & valid[:, horizon:]).to(alignment.dtype).unsqueeze(-1)
            count = pairs.sum()
            reached = (count > 0).to(alignment.dtype)
            per_pair = F.smooth_l1_loss(predicted, contexts[:, horizon:].to(alignment.dtype), reduction="none")
            mean_loss = (per_pair.mean(-1, keepdim=True) * pairs).sum() / count.clamp(min=1)
            alignment = alignment + weight * mean_loss
            weight_sum = weight_sum + weight * reached
            variance = variance + reached * self._variance_hinge(predicted, pairs, count)
            horizon_count = horizon_count + reached
        smallest = min(objective.horizon_weights)
        return alignment / weight_sum.clamp(min=smallest), variance / horizon_count.clamp(min=1)

    def _variance_hinge(self, predicted: Tensor, pairs: Tensor, count: Tensor) -> Tensor:
        """L_var = mean over dimensions of max(0, gamma - std), over the valid predictions of one horizon."""
        mean = (predicted * pairs).sum((0, 1)) / count.clamp(min=1)
        spread = ((predicted - mean).square() * pairs).sum((0, 1)) / count.clamp(min=1)
        return F.relu(self.objective.variance_target - (spread + VARIANCE_EPSILON).sqrt()).mean()
