"""The weights for evaluation: an exponential moving average of the weights in training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class WeightAverage:
    """EMA of everything in a module's state dict. It follows quickly at first: early weights are
    not worth keeping.
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.decay = decay
        self.weights: dict[str, Tensor] = {
            name: value.detach().clone() for name, value in module.state_dict().items()
        }

    @torch.no_grad()
    def update(self, module: nn.Module, step: int) -> None:
        """After the optimizer step with this number, counted from 0."""
        share = 1 - min(self.decay, (1 + step) / (10 + step))
        now = {name: value.detach() for name, value in module.state_dict().items()}
        smooth = [name for name, value in now.items() if value.is_floating_point()]
        torch._foreach_lerp_(
            [self.weights[name] for name in smooth], [now[name] for name in smooth], share
        )
        for name in now.keys() - set(smooth):  # counters and the like
            self.weights[name].copy_(now[name])

    @contextmanager
    def applied(self, module: nn.Module) -> Iterator[None]:
        """The module with the averaged weights, in eval mode, for as long as the block lasts."""
        training, kept = (
            module.training,
            {name: value.detach().clone() for name, value in module.state_dict().items()},
        )
        module.load_state_dict(self.weights)
        module.eval()
        try:
            yield
        finally:
            module.load_state_dict(kept)
            module.train(training)
