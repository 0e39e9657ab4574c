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
"""The mark of a group of parameters that Muon is made for."""


class MuonWithAdamW(torch.optim.Optimizer):
    """Muon for the groups that are marked as matrices, AdamW for the others, as one optimizer:
    LeRobot handles one.

    The two inside keep nothing of their own: before a step they get this one's groups and state.
    """

    def __init__(
        self, groups: Iterable[dict[str, Any]], adamw: dict[str, Any], muon: dict[str, Any]
    ) -> None:
        groups = list(groups)
        chosen, rest = (
            [dict(group) for group in groups if group[MATRICES] is wanted]
            for wanted in (True, False)
        )
        self._inside = [
            kind(parts, **options)
            for kind, parts, options in ((torch.optim.AdamW, rest, adamw), (Muon, chosen, muon))
            if parts
        ]
        super().__init__(
            [group for optimizer in self._inside for group in optimizer.param_groups], {}
        )

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One update of every parameter that has a gradient."""
        assert closure is None
        for optimizer in self._inside:
            orthogonal = isinstance(optimizer, Muon)
            optimizer.state = self.state
            optimizer.param_groups = [
                group for group in self.param_groups if group[MATRICES] is orthogonal
            ]
            optimizer.step()


@OptimizerConfig.register_subclass("chameleon_muon")
@dataclass
class MuonConfig(OptimizerConfig):
    """Settings of Muon and of the AdamW beside it; one learning rate serves both."""

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.99)
    """AdamW's."""
    eps: float = 1e-8
    momentum: float = 0.95
    """Muon's."""
    weight_decay: float = 1e-6
    grad_clip_norm: float = 1.0

    def build(self, params: Any) -> torch.optim.Optimizer:
        """For the groups of `ChameleonPolicy.get_optim_params`."""
        groups = list(params)
        if not all(isinstance(group, dict) and MATRICES in group for group in groups):
            raise ValueError(
                "chameleon_muon must know which parameters are matrices of layers; leave --use_policy_training_preset at "
                "true and choose it with --policy.optimizer=muon"
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
    """Linear warm-up, then a cosine that reaches zero at the last step, as in
    chameleon_policy.train.
    """

    num_warmup_steps: int | None = 100

    def build(self, optimizer: torch.optim.Optimizer, num_training_steps: int) -> LambdaLR:
        """A factor for the learning rate of every step."""
        training = TrainingConfig(
            steps=num_training_steps, learning_rate=1.0, warmup_steps=self.num_warmup_steps or 0
        )
        return LambdaLR(optimizer, lambda step: training.rate(step, step / num_training_steps))
