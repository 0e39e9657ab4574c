"""Environments for the oracle: they show what the expert would do in place of proprioception.

Without torch, like everything that runs in the processes of the environments.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from chameleon_policy.camo.env import CamoEnv
from chameleon_policy.camo.experts import make_expert
from chameleon_policy.camo.tasks import Answer


class OracleEnv(CamoEnv):
    """Shows the expert's next action in place of proprioception."""

    def choice(self) -> Answer | None:
        """What the expert takes for the answer; None: what it is."""
        return None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """A new episode with a new expert, undisturbed."""
        observation, info = super().reset(seed=seed, options=options)
        self._expert = make_expert(self, noise=0.0, wrong_choice=self.choice())
        return self._tell(observation), info

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """As ever."""
        observation, reward, terminated, truncated, info = super().step(action)
        return self._tell(observation), reward, terminated, truncated, info

    def _tell(self, observation: dict[str, Any]) -> dict[str, Any]:
        return {**observation, "proprioception": np.asarray(self._expert.act().action, np.float32)}


class GuessingEnv(OracleEnv):
    """Its expert has not seen the evidence: perfect hands and no memory."""

    def choice(self) -> Answer | None:
        """Any answer, equally likely."""
        return self.task.answers[
            int(np.random.default_rng([self.seed, 1]).integers(len(self.task.answers)))
        ]
