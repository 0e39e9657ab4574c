"""Recipes: named settings of a training, as default instances that options override.

docs/deviations.md says where a recipe departs from the paper's settings, and what was measured.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from chameleon_policy.policy import ObjectiveConfig
from chameleon_policy.train.config import RunConfig, TrainingConfig

RecipeName = Literal["camo", "camo-state"]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Settings of a training for any data and method."""

    horizon: int
    """Actions in one predicted chunk."""
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    training: TrainingConfig

    def run(self, data: tuple[Path, ...], training: dict[str, Any], **options: Any) -> RunConfig:
        """Configure a run on some data.

        `training` and `options` override settings of the recipe and of `RunConfig`; a budget in
        `steps` replaces the one in minutes.
        """
        if training.get("steps") is not None:
            training = {"minutes": None, **training}
        settings = {"horizon": self.horizon, "objective": self.objective, **options}
        return RunConfig(data=data, training=replace(self.training, **training), **settings)


RECIPES: dict[RecipeName, Recipe] = {
    "camo": Recipe(
        horizon=8,
        objective=ObjectiveConfig(action_steps=32, flow_time_power=2, proprioception_noise=0.03),
        training=TrainingConfig(
            minutes=20,
            batch=32,
            optimizer="muon",
            learning_rate=1e-3,
            beta2=0.99,
            gradient_clip=1,
            rest_emphasis=0.1,
            equal_frames=True,
            uneven_pace=0.25,
            longer_retention=20,
            mirror=True,
            warp=0.05,
            plain_steps=2000,
        ),
    ),
    # For the nano policy on object slots, on a CPU.
    "camo-state": Recipe(
        horizon=8,
        objective=ObjectiveConfig(action_steps=24, flow_time_power=2, proprioception_noise=0.03),
        training=TrainingConfig(
            minutes=3.4,
            batch=4,
            optimizer="muon",
            learning_rate=2e-3,
            warmup_steps=30,
            beta2=0.99,
            gradient_clip=1,
            ema_decay=0.99,
            rest_emphasis=0.1,
        ),
    ),
}
