"""Episodes that are looked at around one of their decisions only."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from chameleon_policy.camo.env import CamoEnv


class ChoosingEnv(CamoEnv):
    """An episode that ends with the choice after its decision `until_choice`.

    Until that decision it shows what it showed at the beginning: nobody looks while actions are
    repeated, and drawing takes most of the time.
    """

    def __init__(self, *arguments: Any, until_choice: int, **options: Any) -> None:
        super().__init__(*arguments, **options)
        if not 0 <= until_choice < self.task.decisions:
            raise ValueError(
                f"{self.task.name} has {self.task.decisions} decisions, there is no decision {until_choice}"
            )
        self._until_choice = until_choice
        self._first: dict[str, Any] | None = None

    def reset(self, **options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """As the environment's."""
        self._first = None
        return super().reset(**options)

    def step(
        self, action: npt.ArrayLike
    ) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """As the environment's, but over when the choice is made."""
        observation, reward, _, truncated, info = super().step(action)
        choices = self.task.choices(self.events)
        self._over = self._over or (
            len(choices) > self._until_choice and choices[self._until_choice] is not None
        )
        return observation, reward, self._over and not truncated, truncated, info

    def _observation(self) -> dict[str, Any]:
        if len(self.decisions) > self._until_choice:
            return super()._observation()
        if self._first is None:
            self._first = super()._observation()
        return self._first
