"""Attention of one query to a few dozen sources, without their keys and values.

A head's scores are q (W_k x) = (W_k^T q) x, so W_k is applied once to the query instead of to every
source. Likewise the sources are mixed first, and W_v is applied to the mixture. The bias of the
keys adds the same to every score and has no effect.

| symbol | shape | meaning                              |
|--------|-------|--------------------------------------|
| asked  | H B D | W_k^T q of every head, scaled        |
| x      | B N D | sources                              |
| p      | B H N | softmax over the sources             |
| seen   | H B D | mixture of the sources for each head |
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from chameleon_policy.kernels import AMPLE_SHARED_MEMORY, tile_of

LARGEST = 128
"""Largest number of sources."""
LEAST_QUERIES = 64
"""Fewer queries, as on a robot, are faster with keys and values, which launch fewer kernels."""
MOST_HEADS = 16
PIECE = 128
"""Columns loaded at a time; half as many for MANY sources where shared memory is scarce."""
MANY = 64
WARPS = 4


@triton.jit
def _one_query_forward(
    asked_,
    x_,
    p_,
    seen_,
    batch_size,
    count,
    HEADS: tl.constexpr,
    ROWS: tl.constexpr,
    N: tl.constexpr,
    WIDTH: tl.constexpr,
    PIECE: tl.constexpr,
):
    batch = tl.program_id(0).to(tl.int64)
    head, n, d = tl.arange(0, ROWS), tl.arange(0, N), tl.arange(0, PIECE)
    heads = (head[:, None] * batch_size + batch) * WIDTH
    x_ += batch * count * WIDTH
    scores = tl.zeros((ROWS, N), tl.float32)
    for first in range(0, WIDTH, PIECE):
        place = first + d[None, :]
        asked = tl.load(
            asked_ + heads + place, mask=(head[:, None] < HEADS) & (place < WIDTH), other=0.0
        )
        x = tl.load(
            x_ + n[:, None] * WIDTH + place, mask=(n[:, None] < count) & (place < WIDTH), other=0.0
        )
        scores = tl.dot(asked, tl.trans(x), scores, input_precision="ieee")
    scores = tl.where(n[None, :] < count, scores, -1e30)
    p = tl.exp(scores - tl.max(scores, 1)[:, None])
    p = p / tl.sum(p, 1)[:, None]
    inside = (head[:, None] < HEADS) & (n[None, :] < count)
    tl.store(p_ + batch * HEADS * count + head[:, None] * count + n[None, :], p, mask=inside)
    for first in range(0, WIDTH, PIECE):
        place = first + d[None, :]
        x = tl.load(
            x_ + n[:, None] * WIDTH + place, mask=(n[:, None] < count) & (place < WIDTH), other=0.0
        )
        seen = tl.dot(p.to(x.dtype), x, input_precision="ieee")
        tl.store(seen_ + heads + place, seen, mask=(head[:, None] < HEADS) & (place < WIDTH))


@triton.jit
def _one_query_backward(
    asked_,
    x_,
    p_,
    dseen_,
    dasked_,
    dx_,
    batch_size,
    count,
    HEADS: tl.constexpr,
    ROWS: tl.constexpr,
    N: tl.constexpr,
    WIDTH: tl.constexpr,
    PIECE: tl.constexpr,
):
    batch = tl.program_id(0).to(tl.int64)
    head, n, d = tl.arange(0, ROWS), tl.arange(0, N), tl.arange(0, PIECE)
    heads = (head[:, None] * batch_size + batch) * WIDTH
    x_ += batch * count * WIDTH
    dx_ += batch * count * WIDTH
    dp = tl.zeros((ROWS, N), tl.float32)
    for first in range(0, WIDTH, PIECE):
        place = first + d[None, :]
        dseen = tl.load(
            dseen_ + heads + place, mask=(head[:, None] < HEADS) & (place < WIDTH), other=0.0
        )
        x = tl.load(
            x_ + n[:, None] * WIDTH + place, mask=(n[:, None] < count) & (place < WIDTH), other=0.0
        )
        dp = tl.dot(dseen, tl.trans(x), dp, input_precision="ieee")
    inside = (head[:, None] < HEADS) & (n[None, :] < count)
    p = tl.load(
        p_ + batch * HEADS * count + head[:, None] * count + n[None, :], mask=inside, other=0.0
    )
    dscores = p * (dp - tl.sum(p * dp, 1)[:, None])
    for first in range(0, WIDTH, PIECE):
        place = first + d[None, :]
        mine, sources = (
            (head[:, None] < HEADS) & (place < WIDTH),
            (n[:, None] < count) & (place < WIDTH),
        )
        x = tl.load(x_ + n[:, None] * WIDTH + place, mask=sources, other=0.0)
        tl.store(
            dasked_ + heads + place,
            tl.dot(dscores.to(x.dtype), x, input_precision="ieee"),
            mask=mine,
        )
        dseen = tl.load(dseen_ + heads + place, mask=mine, other=0.0)
        asked = tl.load(asked_ + heads + place, mask=mine, other=0.0)
        dx = tl.dot(tl.trans(p).to(x.dtype), dseen, input_precision="ieee")
        dx = tl.dot(tl.trans(dscores).to(x.dtype), asked, dx, input_precision="ieee")
        tl.store(dx_ + n[:, None] * WIDTH + place, dx, mask=sources)


def fits(queries: int, heads: int, sources: int) -> bool:
    """Return whether the kernels support these sizes and are faster than keys and values."""
    return queries >= LEAST_QUERIES and heads <= MOST_HEADS and sources <= LARGEST


class OneQuery(torch.autograd.Function):
    """seen = softmax(asked x) x, one query for each of B sets of sources."""

    @staticmethod
    def forward(ctx: Any, asked: Tensor, sources: Tensor, shared_memory: int) -> Tensor:
        asked, sources = asked.contiguous(), sources.contiguous()
        (heads, batch, _), count = asked.shape, sources.shape[1]
        weights = torch.empty(batch, heads, count, device=asked.device, dtype=torch.float32)
        seen = torch.empty_like(asked)
        _one_query_forward[(batch,)](
            asked, sources, weights, seen, batch, count, **_sizes(asked, sources, shared_memory)
        )
        ctx.save_for_backward(asked, sources, weights)
        ctx.shared_memory = shared_memory
        return seen

    @staticmethod
    def backward(ctx: Any, dseen: Tensor) -> tuple[Tensor, Tensor, None]:  # type: ignore[override]
        asked, sources, weights = ctx.saved_tensors
        dasked, dsources = torch.empty_like(asked), torch.empty_like(sources)
        _one_query_backward[(len(sources),)](
            asked,
            sources,
            weights,
            dseen.contiguous(),
            dasked,
            dsources,
            len(sources),
            sources.shape[1],
            **_sizes(asked, sources, ctx.shared_memory),
        )
        return dasked, dsources, None


def _sizes(asked: Tensor, sources: Tensor, shared_memory: int) -> dict[str, int]:
    heads, width = asked.shape[0], asked.shape[2]
    piece = PIECE // 2 if sources.shape[1] > MANY and shared_memory < AMPLE_SHARED_MEMORY else PIECE
    return {
        "HEADS": heads,
        "ROWS": MOST_HEADS,
        "N": tile_of(sources.shape[1]),
        "WIDTH": width,
        "PIECE": min(piece, tile_of(width)),
        "num_warps": WARPS,
    }
