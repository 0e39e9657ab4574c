"""Experts as policies, to test the evaluation itself: their scores bound what it can find.

Their environment shows the expert's next action in place of proprioception; the policy executes it.
Batching, memory states, chunks and processes are those of every policy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from chameleon_policy.policy import Features, ObjectSlots, Observation
from chameleon_policy.suite import EnvironmentSettings


@dataclass(frozen=True, eq=False)
class LastAction:
    """Memory of an oracle: the action it was shown last (B, A)."""

    action: Tensor

    def __len__(self) -> int:
        return len(self.action)

    def __getitem__(self, index: list[int]) -> LastAction:
        return LastAction(self.action[index])

    def put(self, index: list[int], other: LastAction) -> LastAction:
        """Return a copy with some entries replaced."""
        return LastAction(self.action.index_put((torch.tensor(index),), other.action))


class OraclePolicy:
    """Policy that executes the action its environment shows."""

    method = "oracle"
    device = torch.device("cpu")
    executed = 1
    temporal_ensemble = None
    features = Features(
        objects=ObjectSlots(count=1, size=1), proprioception=10, action=10, horizon=1
    )

    @classmethod
    def of(cls, settings: EnvironmentSettings) -> Self:
        """Return the policy for an environment's actions."""
        env = settings.make_env()
        (size,) = env.action_space.shape
        env.close()
        policy = cls()
        policy.features = Features(
            objects=ObjectSlots(count=1, size=1), proprioception=size, action=size, horizon=1
        )
        return policy

    def initial_state(self, batch_size: int = 1) -> LastAction:
        """Return a memory of no action."""
        return LastAction(torch.zeros(batch_size, self.features.action))

    def observe(self, observation: Observation, state: LastAction) -> LastAction:
        """Remember the action that is shown."""
        assert len(observation.proprioception) == len(state)
        return LastAction(observation.proprioception)

    def act(
        self, state: LastAction, *, steps: int | None = None, source: Tensor | None = None
    ) -> Tensor:
        """Return chunks of one action (B, 1, A)."""
        return state.action.unsqueeze(1)
