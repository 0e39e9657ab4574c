"""The memories of all sessions in one batch, so that sessions can be computed together."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from chameleon_policy.policy import MemoryState, VisuomotorPolicy


class Memories:
    """A batch of memories with at most `most` slots, added on demand; for one thread."""

    def __init__(self, policy: VisuomotorPolicy, most: int) -> None:
        self._policy, self._most = policy, most
        self._fresh = policy.initial_state(1)
        self._state = policy.initial_state(1)
        self._free = [0]

    def __len__(self) -> int:
        return len(self._state)

    @property
    def state(self) -> MemoryState:
        """All slots, also unused ones."""
        return self._state

    def take(self) -> int:
        """Return a slot whose memory is that before the first observation."""
        if not self._free:
            self._grow()
        slot = self._free.pop(0)
        self.write([slot], self._fresh)  # another session may have used it
        return slot

    def give_back(self, slot: int) -> None:
        """Free a slot."""
        assert slot not in self._free
        # low ones first, so that used slots are neighbours
        self._free = sorted([*self._free, slot])

    def read(self, slots: Sequence[int]) -> MemoryState:
        """Return the memories in these slots (in ascending order), which must not be changed."""
        return self._state if len(slots) == len(self) else self._state[list(slots)]

    def write(self, slots: Sequence[int], memory: MemoryState) -> None:
        """Replace the memories in these slots."""
        all_slots = len(slots) == len(self)
        where = torch.tensor(slots, device=self._state.working.device)
        for old, new in _pairs(self._state, memory):
            # copied, because what a policy returns may share memory with something else
            if all_slots:
                old.copy_(new)
            else:
                old.index_copy_(0, where, new.to(old))

    def _grow(self) -> None:
        now = len(self)
        assert now < self._most, "more sessions than slots"
        larger = self._policy.initial_state(min(2 * now, self._most))
        for new, old in _pairs(larger, self._state):
            new[:now].copy_(old)
        self._state = larger
        self._free = list(range(now, len(larger)))


def _pairs(one: MemoryState, other: MemoryState) -> list[tuple[Tensor, Tensor]]:
    return list(zip(one.tensors().values(), other.tensors().values(), strict=True))
