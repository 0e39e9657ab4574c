"""Muon and the cosine of `chameleon train`, for LeRobot."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from lerobot.optim.optimizers import OptimizerConfig
from lerobot.optim.schedulers import LRSchedulerConfig
from torch.optim.lr_scheduler import LambdaLR

from chameleon_policy.train.config import TrainingConfig
from chameleon_policy.train.optimizers import Muon

MATRICES = "matrices"
"""Key that marks a group of parameters for Muon."""


class MuonWithAdamW(torch.optim.Optimizer):
    """Muon for the groups that are marked as matrices, AdamW for the others, as one optimizer.

    The two inner optimizers keep no state: before a step they get the groups and the state of this
    one.
    """

    def __init__(
        self, groups: Iterable[dict[str, Any]], adamw: dict[str, Any], muon: dict[str, Any]
    ) -> None:
        groups = list(groups)
        chosen, rest = (
            [dict(group) for group in groups if group[MATRICES] is wanted]
            for wanted in (True, False)
        )
        self._optimizers = [
            kind(parts, **options)
            for kind, parts, options in ((torch.optim.AdamW, rest, adamw), (Muon, chosen, muon))
            if parts
        ]
        super().__init__(
            [group for optimizer in self._optimizers for group in optimizer.param_groups], {}
        )

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        assert closure is None
        for optimizer in self._optimizers:
            orthogonal = isinstance(optimizer, Muon)
            optimizer.state = self.state
            optimizer.param_groups = [
                group for group in self.param_groups if group[MATRICES] is orthogonal
            ]
            optimizer.step()


@OptimizerConfig.register_subclass("chameleon_muon")
@dataclass
class MuonConfig(OptimizerConfig):
    """Settings of Muon and AdamW, which share one learning rate."""

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.99)
    """Of AdamW."""
    eps: float = 1e-8
    momentum: float = 0.95
    """Of Muon."""
    weight_decay: float = 1e-6
    grad_clip_norm: float = 1.0

    def build(self, params: Any) -> torch.optim.Optimizer:
        """Return an optimizer of the groups of `ChameleonPolicy.get_optim_params`."""
        groups = list(params)
        if not all(isinstance(group, dict) and MATRICES in group for group in groups):
            raise ValueError(
                "chameleon_muon must know which parameters are matrices of layers; leave "
                "--use_policy_training_preset at true and choose it with --policy.optimizer=muon"
            )
        common = {"lr": self.lr, "weight_decay": self.weight_decay}
        return MuonWithAdamW(
            groups,
            {**common, "betas": tuple(self.betas), "eps": self.eps},
            {**common, "momentum": self.momentum},
        )


@LRSchedulerConfig.register_subclass("chameleon_cosine")
@dataclass
class CosineConfig(LRSchedulerConfig):
    """Linear warm-up, then a cosine to zero at the last step, as in chameleon_policy.train."""

    num_warmup_steps: int | None = 100

    def build(self, optimizer: torch.optim.Optimizer, num_training_steps: int) -> LambdaLR:
        """Return the schedule of the learning rate."""
        training = TrainingConfig(
            steps=num_training_steps, learning_rate=1.0, warmup_steps=self.num_warmup_steps or 0
        )
        return LambdaLR(optimizer, lambda step: training.rate(step, step / num_training_steps))
