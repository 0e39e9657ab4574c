"""Ablation: a bank of past frames, searched by similarity to the present one, in place of traces
(addressability).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chameleon_policy.policy import ChameleonPolicy, PolicyConfig
from chameleon_policy.policy.memory import MemoryLayer, TracePropagation, TraceState

BANK = 256
"""Frames that are kept: more than an episode of Camo has."""
RETRIEVED = 8
"""k: the most similar of them."""


class SimilarityBank(TracePropagation):
    """E_t = the k past frames whose embeddings have the largest cosine with that of the present
    one.

    The embedding of a frame is the mean of its bound tokens; recall then asks the k frames as it
    would ask the traces.
    """

    def __init__(self, config: PolicyConfig) -> None:
        nn.Module.__init__(self)  # there is no recurrence here
        self.width = config.width
        self.nothing: Tensor
        # knows the type and the device of a bank
        self.register_buffer("nothing", torch.zeros(0), persistent=False)

    def forward(
        self, bound: Tensor, state: TraceState | None, *, keep_state: bool
    ) -> tuple[Tensor, dict[str, Tensor] | None]:
        """Bound tokens (B T N D) to the frames that are found (B T k D); zeros where there are not
        yet so many.
        """
        frames = bound.mean(2)
        time = frames.shape[1]
        assert state is None or isinstance(state, dict)
        if state is None:
            everything, first_real = frames, frames.new_zeros(len(frames), dtype=torch.int64)
        else:
            everything = torch.cat([state["frames"].to(frames.dtype), frames], dim=1)
            first_real = BANK - state["count"]
        length = everything.shape[1]
        now = torch.arange(length - time, length, device=frames.device)[:, None]
        place = torch.arange(length, device=frames.device)
        past = (place < now) & (place >= now - BANK) & (place >= first_real[:, None, None])
        # neighbouring frames differ by less than bfloat16 can tell
        with torch.autocast(frames.device.type, enabled=False):
            directions = F.normalize(
                everything.to(torch.promote_types(everything.dtype, torch.float32)), dim=-1
            )
            alike = directions[:, -time:] @ directions.mT
        likeness, found = alike.masked_fill(~past, -torch.inf).topk(min(RETRIEVED, length), dim=-1)
        episode = torch.arange(frames.shape[0], device=frames.device)[:, None, None]
        retrieved = everything[episode, found] * torch.isfinite(likeness).unsqueeze(-1)
        retrieved = F.pad(retrieved, (0, 0, 0, RETRIEVED - retrieved.shape[2]))
        return retrieved, self._after(everything, state, time) if keep_state else None

    def _after(
        self, everything: Tensor, state: dict[str, Tensor] | None, time: int
    ) -> dict[str, Tensor]:
        kept = F.pad(everything, (0, 0, max(0, BANK - everything.shape[1]), 0))[:, -BANK:]
        before = 0 if state is None else state["count"]
        count = torch.full((everything.shape[0],), time, device=everything.device) + before
        return {"frames": kept.to(self.nothing.dtype, copy=True), "count": count.clamp(max=BANK)}

    def initial_state(self, batch_size: int, tokens: int) -> dict[str, Tensor]:
        """An empty bank."""
        return {
            "frames": self.nothing.new_zeros(batch_size, BANK, self.width),
            "count": torch.zeros(batch_size, dtype=torch.int64, device=self.nothing.device),
        }

    def write_back_traces(self, traces: Tensor) -> Tensor:
        """What was found says nothing of single tokens: all get its mean."""
        return traces.mean(2, keepdim=True)


class SimilarityPolicy(ChameleonPolicy):
    """Chameleon without the slow state-space layers; everything else is there."""

    method = "similarity"

    def _make_layer(self) -> MemoryLayer:
        layer = super()._make_layer()
        layer.propagation = SimilarityBank(self.config)
        return layer
