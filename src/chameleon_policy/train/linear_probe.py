"""A linear classifier, fitted the same way everywhere: what it reads, an action head could read
too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

PENALTY = 1e-2
"""Of squared weights; a representation has more numbers than there may be demonstrations."""


@dataclass(frozen=True, eq=False)
class LinearProbe:
    """softmax(W (x - mean) / spread + b)."""

    mean: Tensor
    spread: Tensor
    weight: Tensor
    bias: Tensor

    @classmethod
    def fit(cls, rows: Tensor, answers: Tensor, classes: int) -> Self:
        """Least cross-entropy over rows (M D) with answers (M), and a small penalty on the
        weights.
        """
        mean, spread = rows.mean(0), rows.std(0, correction=0).clamp(min=1e-6)
        known = (rows - mean) / spread
        weight = torch.zeros(classes, known.shape[1], device=known.device, requires_grad=True)
        bias = torch.zeros(classes, device=known.device, requires_grad=True)
        optimizer = torch.optim.LBFGS([weight, bias], max_iter=100, line_search_fn="strong_wolfe")

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = (
                F.cross_entropy(known @ weight.T + bias, answers) + PENALTY * weight.square().sum()
            )
            loss.backward()
            return loss

        with torch.autocast(known.device.type, enabled=False), torch.enable_grad():
            optimizer.step(closure)
        return cls(mean, spread, weight.detach(), bias.detach())

    def shares(self, rows: Tensor) -> Tensor:
        """The probability of every answer, (... D) to (... classes)."""
        with torch.autocast(rows.device.type, enabled=False):
            return torch.softmax(
                (rows - self.mean) / self.spread @ self.weight.T + self.bias, dim=-1
            )

    def told(self, rows: Tensor) -> Tensor:
        """The likeliest answer of every row."""
        return self.shares(rows).argmax(-1)
