"""The experts as policies, to test the evaluation itself: what they score is the most, and the
least, that it can find.

Its environment (`oracle_env.py`) shows what the expert would do in place of proprioception; the
oracle does just that. Batching, memory states, chunks and processes are those of every policy.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from chameleon_policy.policy import Features, ObjectSlots, Observation


@dataclass(frozen=True, eq=False)
class LastAction:
    """The oracle's memory: what it was told last."""

    action: Tensor

    def __len__(self) -> int:
        return len(self.action)

    def __getitem__(self, index: list[int]) -> LastAction:
        return LastAction(self.action[index])

    def put(self, index: list[int], other: LastAction) -> LastAction:
        """A copy with some entries replaced."""
        return LastAction(self.action.index_put((torch.tensor(index),), other.action))


class OraclePolicy:
    """Does what its environment tells it to do."""

    method = "oracle"
    device = torch.device("cpu")
    executed = 1
    temporal_ensemble = None
    features = Features(
        objects=ObjectSlots(count=1, size=1), proprioception=10, action=10, horizon=1
    )

    def initial_state(self, batch_size: int = 1) -> LastAction:
        """Nothing told yet."""
        return LastAction(torch.zeros(batch_size, self.features.action))

    def observe(self, observation: Observation, state: LastAction) -> LastAction:
        """Listen."""
        assert len(observation.proprioception) == len(state)
        return LastAction(observation.proprioception)

    def act(
        self, state: LastAction, *, steps: int | None = None, source: Tensor | None = None
    ) -> Tensor:
        """Obey: chunks of one action."""
        return state.action.unsqueeze(1)
