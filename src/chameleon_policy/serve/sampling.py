"""Chunks in the making: sampling in slices, so that nobody waits for the whole of another's chunk.

Decisions
- An Euler step of all chunks in the making is one batch, whatever their numbers of steps: a chunk
  of 8 steps is ready after two slices, also beside a chunk of 100.
- Heads without Euler steps sample in one piece. Of those, one batch is computed at a time, and the
  addresses take turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from chameleon_policy.policy import VisuomotorPolicy
from chameleon_policy.policy.visuomotor import FlowPolicy
from chameleon_policy.serve.memories import Memories

SLICE = 4
"""Euler steps between two batches of observations."""


@dataclass(eq=False, slots=True)
class Draft:
    """A chunk in the making, a batch of one; the memory in its slot stays as it is meanwhile."""

    slot: int
    chunk: Tensor
    """First the noise; in the robot's units when it is done."""
    steps: int
    peer: str
    """Address of the client."""
    done: int = 0
    """Sampling steps that were computed."""
    context: list[Tensor] = field(default_factory=list)
    """The head's condition, for Euler steps."""

    @property
    def over(self) -> bool:
        """Whether no step is left."""
        return self.done == self.steps


class Sampler(Protocol):
    """The way in which a policy's chunks are made."""

    def choose(self, drafts: Sequence[Draft]) -> list[Draft]:
        """Return the drafts to compute next, in one batch."""

    def compute(self, drafts: Sequence[Draft]) -> None:
        """Compute a slice of these drafts, which are in the order of their slots."""


def sampler(policy: VisuomotorPolicy, memories: Memories) -> Sampler:
    """Return the sampler of a policy."""
    if isinstance(policy, FlowPolicy):
        return EulerSampler(policy, memories)
    return WholeSampler(policy, memories)


class EulerSampler:
    """A sampler in single Euler steps, with the numbers of `ActionFlow.sample`."""

    def __init__(self, policy: FlowPolicy, memories: Memories) -> None:
        self._policy, self._memories = policy, memories

    def choose(self, drafts: Sequence[Draft]) -> list[Draft]:
        """Return all drafts."""
        return list(drafts)

    def compute(self, drafts: Sequence[Draft]) -> None:
        """Carry out at most SLICE Euler steps of each draft."""
        if new := [draft for draft in drafts if not draft.context]:
            self._begin(new)
        for _ in range(SLICE):
            if going := [draft for draft in drafts if not draft.over]:
                self._step(going)
        for draft in drafts:
            if draft.over:
                draft.chunk = self._policy.normalize_action.inverse(draft.chunk)

    def _begin(self, drafts: Sequence[Draft]) -> None:
        working = self._memories.state.working[[draft.slot for draft in drafts]]
        blocks = [block.split(1) for block in self._policy.flow_context(working)]
        for index, draft in enumerate(drafts):
            draft.context = [block[index] for block in blocks]
            draft.chunk = draft.chunk.to(draft.context[0])

    def _step(self, drafts: Sequence[Draft]) -> None:
        chunk = torch.cat([draft.chunk for draft in drafts])
        kind = torch.promote_types(chunk.dtype, torch.float32)
        flow_time = torch.tensor(
            [draft.done / draft.steps for draft in drafts], dtype=kind, device=chunk.device
        )
        blocks = zip(*(draft.context for draft in drafts), strict=True)
        context = [torch.cat(block) for block in blocks]
        left = [draft.steps - draft.done for draft in drafts]
        # a GPU divides by one number and by several with different last bits
        same = len(set(left)) == 1
        each = left[0] if same else chunk.new_tensor(left)[:, None, None]
        chunk = self._policy.action_flow.euler_step(chunk, flow_time, context, each)
        for draft, after in zip(drafts, chunk.split(1), strict=True):
            draft.chunk, draft.done = after, draft.done + 1


class WholeSampler:
    """A sampler of whole chunks, one number of sampling steps at a time."""

    def __init__(self, policy: VisuomotorPolicy, memories: Memories) -> None:
        self._policy, self._memories = policy, memories
        self._last: set[str] = set()
        """Addresses in the last batch."""

    def choose(self, drafts: Sequence[Draft]) -> list[Draft]:
        """Return the drafts with as many steps as the oldest one whose address has its turn."""
        first = next((draft for draft in drafts if draft.peer not in self._last), drafts[0])
        chosen = [draft for draft in drafts if draft.steps == first.steps]
        self._last = {draft.peer for draft in chosen}
        return chosen

    def compute(self, drafts: Sequence[Draft]) -> None:
        """Compute the chunks of these drafts."""
        memory = self._memories.read([draft.slot for draft in drafts])
        noise, steps = torch.cat([draft.chunk for draft in drafts]), drafts[0].steps
        chunks = self._policy.act(memory, steps=steps, source=noise).split(1)
        for draft, chunk in zip(drafts, chunks, strict=True):
            draft.chunk, draft.done = chunk, draft.steps
