"""Recipes: settings of a training under a name, as default instances. Options beside a recipe count
more.

Where a recipe leaves the paper's settings, docs/deviations.md says what was measured and what was
not.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from chameleon_policy.policy import ObjectiveConfig
from chameleon_policy.train.config import TrainingConfig

RecipeName = Literal["camo", "camo-state"]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a policy is trained, whatever the data and the method are."""

    horizon: int
    """Actions in one predicted chunk."""
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    training: TrainingConfig

    def trained_with(self, **training: Any) -> TrainingConfig:
        """Return its training with other settings; a budget in `steps` replaces the one in
        minutes.
        """
        if training.get("steps") is not None:
            training = {"minutes": None, **training}
        return replace(self.training, **training)


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
