"""Ablation: a bank of past frames with retrieval by similarity replaces traces (addressability)."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chameleon_policy.policy import ChameleonPolicy, PolicyConfig
from chameleon_policy.policy.memory import MemoryLayer, TracePropagation, TraceState

BANK = 256
"""Number of frames that are kept: more than an episode of Camo has."""
RETRIEVED = 8
"""Number k of retrieved frames."""


class SimilarityBank(TracePropagation):
    """E_t = the k past frames with the largest cosine similarity to the current one.

    The embedding of a frame is the mean of its bound tokens; recall attends to the k frames as it
    would to the traces.
    """

    def __init__(self, config: PolicyConfig) -> None:
        nn.Module.__init__(self)  # without the state-space layer of `TracePropagation`
        self.width = config.width
        self.reference: Tensor
        # Follows the module's type and device, for new banks.
        self.register_buffer("reference", torch.zeros(0), persistent=False)

    def forward(
        self, bound: Tensor, state: TraceState | None, *, keep_state: bool
    ) -> tuple[Tensor, dict[str, Tensor] | None]:
        """Retrieve frames (B T k D) for bound tokens (B T N D); missing ones are zeros."""
        frames = bound.mean(2)
        time = frames.shape[1]
        assert state is None or isinstance(state, dict)
        if state is None:
            bank, first_real = frames, frames.new_zeros(len(frames), dtype=torch.int64)
        else:
            bank = torch.cat([state["frames"].to(frames.dtype), frames], dim=1)
            first_real = BANK - state["count"]
        length = bank.shape[1]
        now = torch.arange(length - time, length, device=frames.device)[:, None]
        index = torch.arange(length, device=frames.device)
        past = (index < now) & (index >= now - BANK) & (index >= first_real[:, None, None])
        # Neighbouring frames differ by less than the resolution of bfloat16.
        with torch.autocast(frames.device.type, enabled=False):
            kind = torch.promote_types(bank.dtype, torch.float32)
            directions = F.normalize(bank.to(kind), dim=-1)
            similarities = directions[:, -time:] @ directions.mT
        similarities = similarities.masked_fill(~past, -torch.inf)
        best, found = similarities.topk(min(RETRIEVED, length), dim=-1)
        episode = torch.arange(frames.shape[0], device=frames.device)[:, None, None]
        retrieved = bank[episode, found] * torch.isfinite(best).unsqueeze(-1)
        retrieved = F.pad(retrieved, (0, 0, 0, RETRIEVED - retrieved.shape[2]))
        return retrieved, self._after(bank, state, time) if keep_state else None

    def _after(self, bank: Tensor, state: dict[str, Tensor] | None, time: int) -> dict[str, Tensor]:
        kept = F.pad(bank, (0, 0, max(0, BANK - bank.shape[1]), 0))[:, -BANK:]
        before = 0 if state is None else state["count"]
        count = torch.full((bank.shape[0],), time, device=bank.device) + before
        return {"frames": kept.to(self.reference.dtype, copy=True), "count": count.clamp(max=BANK)}

    def initial_state(self, batch_size: int, tokens: int) -> dict[str, Tensor]:
        """Make an empty bank."""
        return {
            "frames": self.reference.new_zeros(batch_size, BANK, self.width),
            "count": torch.zeros(batch_size, dtype=torch.int64, device=self.reference.device),
        }

    def write_back_traces(self, traces: Tensor) -> Tensor:
        """Return the mean of the retrieved frames for all tokens."""
        return traces.mean(2, keepdim=True)


class SimilarityPolicy(ChameleonPolicy):
    """Chameleon with a bank of frames in place of the slow state-space layers."""

    method: ClassVar[str] = "similarity"

    def _make_layer(self) -> MemoryLayer:
        layer = super()._make_layer()
        layer.propagation = SimilarityBank(self.config)
        return layer
