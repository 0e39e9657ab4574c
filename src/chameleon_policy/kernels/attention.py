"""Attention over a few dozen tokens, with a head's queries, keys and values in registers.

It reads the projections as they are, so that nothing is rearranged or concatenated in memory. Keys
and values may have two parts: the tokens' own, and a context computed before. Tokens can also
return their own keys and values as a context for others; the gradients from those are added in the
same pass.

| symbol | shape           | meaning                                                   |
|--------|-----------------|-----------------------------------------------------------|
| q      | B M (heads c)   | queries                                                   |
| kv     | B N (2 heads c) | keys of all heads, then values of all heads               |
| ckv    | B C (2 heads c) | those of the context, visible to every query              |
| qkv    | B M (3 heads c) | queries, keys and values of the same tokens, side by side |
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from chameleon_policy.kernels import tile_of

LARGEST = 128
"""Largest number of queries and of sources."""


def fits(shared_memory: int, head_size: int, queries: int, *sources: int) -> bool:
    """Return whether the kernels support these sizes in this shared memory (bytes) per block.

    `_attention_backward` needs the most: at most 5 bytes per number of a head's queries and keys,
    measured by compiling it (`benchmarks.small_cards`).
    """
    if head_size < 16 or head_size & (head_size - 1) or max(queries, *sources) > LARGEST:
        return False
    return 5 * head_size * sum(tile_of(count) for count in (queries, *sources)) <= shared_memory


@triton.jit
def _attention_forward(
    q_,
    kv_,
    ckv_,
    o_,
    m_count,
    n_count,
    c_count,
    q_stride,
    kv_stride,
    ckv_stride,
    scale,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    C: tl.constexpr,
    CONTEXT: tl.constexpr,
):
    batch, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    width: tl.constexpr = HEADS * SIZE
    m, n, s = tl.arange(0, M), tl.arange(0, N), tl.arange(0, SIZE)
    here = m[:, None] * q_stride + s[None, :]
    q = tl.load(
        q_ + batch * m_count * q_stride + head * SIZE + here, mask=m[:, None] < m_count, other=0.0
    )
    own = n[:, None] * kv_stride + s[None, :]
    kv_ += batch * n_count * kv_stride + head * SIZE
    k = tl.load(kv_ + own, mask=n[:, None] < n_count, other=0.0)
    v = tl.load(kv_ + width + own, mask=n[:, None] < n_count, other=0.0)
    p = tl.where(
        n[None, :] < n_count, tl.dot(q, tl.trans(k), input_precision="ieee") * scale, -1e30
    )
    top = tl.max(p, 1)
    if CONTEXT:
        c = tl.arange(0, C)
        there = c[:, None] * ckv_stride + s[None, :]
        ckv_ += batch * c_count * ckv_stride + head * SIZE
        ck = tl.load(ckv_ + there, mask=c[:, None] < c_count, other=0.0)
        cv = tl.load(ckv_ + width + there, mask=c[:, None] < c_count, other=0.0)
        cp = tl.where(
            c[None, :] < c_count, tl.dot(q, tl.trans(ck), input_precision="ieee") * scale, -1e30
        )
        top = tl.maximum(top, tl.max(cp, 1))
    p = tl.exp(p - top[:, None])
    total = tl.sum(p, 1)
    o = tl.dot(p.to(v.dtype), v, input_precision="ieee")
    if CONTEXT:
        cp = tl.exp(cp - top[:, None])
        total += tl.sum(cp, 1)
        o += tl.dot(cp.to(cv.dtype), cv, input_precision="ieee")
    o_ += batch * m_count * width + head * SIZE
    tl.store(o_ + m[:, None] * width + s[None, :], o / total[:, None], mask=m[:, None] < m_count)


@triton.jit
def _attention_backward(
    do_,
    q_,
    kv_,
    ckv_,
    dothers_,
    dq_,
    dkv_,
    dckv_,
    m_count,
    n_count,
    c_count,
    q_stride,
    kv_stride,
    ckv_stride,
    scale,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    C: tl.constexpr,
    CONTEXT: tl.constexpr,
    OTHERS: tl.constexpr,
):
    batch, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    width: tl.constexpr = HEADS * SIZE
    m, n, s = tl.arange(0, M), tl.arange(0, N), tl.arange(0, SIZE)
    here = m[:, None] * q_stride + s[None, :]
    q_base = batch * m_count * q_stride + head * SIZE
    q = tl.load(q_ + q_base + here, mask=m[:, None] < m_count, other=0.0)
    do_ += batch * m_count * width + head * SIZE
    do = tl.load(do_ + m[:, None] * width + s[None, :], mask=m[:, None] < m_count, other=0.0)
    own = n[:, None] * kv_stride + s[None, :]
    kv_base = batch * n_count * kv_stride + head * SIZE
    k = tl.load(kv_ + kv_base + own, mask=n[:, None] < n_count, other=0.0)
    v = tl.load(kv_ + kv_base + width + own, mask=n[:, None] < n_count, other=0.0)
    kind = q.dtype
    p = tl.where(
        n[None, :] < n_count, tl.dot(q, tl.trans(k), input_precision="ieee") * scale, -1e30
    )
    dp = tl.dot(do, tl.trans(v), input_precision="ieee")
    top = tl.max(p, 1)
    if CONTEXT:
        c = tl.arange(0, C)
        there = c[:, None] * ckv_stride + s[None, :]
        ckv_base = batch * c_count * ckv_stride + head * SIZE
        ck = tl.load(ckv_ + ckv_base + there, mask=c[:, None] < c_count, other=0.0)
        cv = tl.load(ckv_ + ckv_base + width + there, mask=c[:, None] < c_count, other=0.0)
        cp = tl.where(
            c[None, :] < c_count, tl.dot(q, tl.trans(ck), input_precision="ieee") * scale, -1e30
        )
        dcp = tl.dot(do, tl.trans(cv), input_precision="ieee")
        top = tl.maximum(top, tl.max(cp, 1))
    p = tl.exp(p - top[:, None])
    total = tl.sum(p, 1)
    if CONTEXT:
        cp = tl.exp(cp - top[:, None])
        total += tl.sum(cp, 1)
        cp = cp / total[:, None]
    p = p / total[:, None]
    along = tl.sum(p * dp, 1)
    if CONTEXT:
        along += tl.sum(cp * dcp, 1)
    ds = (p * (dp - along[:, None]) * scale).to(kind)
    dq = tl.dot(ds, k, input_precision="ieee")
    dk = tl.dot(tl.trans(ds), q, input_precision="ieee")
    dv = tl.dot(tl.trans(p.to(kind)), do, input_precision="ieee")
    if OTHERS:
        dothers_ += batch * n_count * 2 * width + head * SIZE + n[:, None] * 2 * width + s[None, :]
        dk += tl.load(dothers_, mask=n[:, None] < n_count, other=0.0).to(tl.float32)
        dv += tl.load(dothers_ + width, mask=n[:, None] < n_count, other=0.0).to(tl.float32)
    tl.store(dkv_ + kv_base + own, dk, mask=n[:, None] < n_count)
    tl.store(dkv_ + kv_base + width + own, dv, mask=n[:, None] < n_count)
    if CONTEXT:
        # The gradient of the context is contiguous, even if the rows of the context have gaps.
        dthere = c[:, None] * 2 * width + s[None, :]
        dckv_ += batch * c_count * 2 * width + head * SIZE
        dcs = (cp * (dcp - along[:, None]) * scale).to(kind)
        dq += tl.dot(dcs, ck, input_precision="ieee")
        tl.store(
            dckv_ + dthere,
            tl.dot(tl.trans(dcs), q, input_precision="ieee"),
            mask=c[:, None] < c_count,
        )
        dcv = tl.dot(tl.trans(cp.to(kind)), do, input_precision="ieee")
        tl.store(dckv_ + width + dthere, dcv, mask=c[:, None] < c_count)
    tl.store(dq_ + q_base + here, dq, mask=m[:, None] < m_count)


class ShortAttention(torch.autograd.Function):
    """Attention whose whole sequence fits into registers.

    Arguments: queries (B M D) with keys and values (B N 2D), or all three side by side (B M 3D) and
    None; keys and values of a context (B C 2D, rows may have gaps) or None; the heads. Returns the
    mixed values (B M D), and the tokens' own keys and values (B N 2D) as a context for others.
    """

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key_value: Tensor | None, context: Tensor | None, heads: int
    ) -> tuple[Tensor, Tensor]:
        query, key_value = query.contiguous(), None if key_value is None else key_value.contiguous()
        if context is not None and (
            context.stride(2) != 1 or context.stride(0) != context.shape[1] * context.stride(1)
        ):
            context = context.contiguous()
        ctx.save_for_backward(query, key_value, context)
        ctx.heads = heads
        ctx.set_materialize_grads(False)
        width = query.shape[-1] // (3 if key_value is None else 1)
        output = query.new_empty(*query.shape[:2], width)
        own = query[..., width:] if key_value is None else key_value
        pointers = (query, own, own if context is None else context, output)
        _launch(_attention_forward, pointers, query, own, context, heads, width)
        return output, own.view_as(own)

    @staticmethod
    def backward(
        ctx: Any, doutput: Tensor | None, dothers: Tensor | None
    ) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        query, key_value, context = ctx.saved_tensors
        width = query.shape[-1] // (3 if key_value is None else 1)
        if doutput is None:
            doutput = query.new_zeros(*query.shape[:2], width)
        dothers = None if dothers is None else dothers.contiguous()
        own = query[..., width:] if key_value is None else key_value
        dquery = torch.empty_like(query)
        dkey_value = None if key_value is None else torch.empty_like(key_value)
        down = dquery[..., width:] if dkey_value is None else dkey_value
        dcontext = None if context is None else context.new_empty(context.shape)
        pointers = (
            doutput.contiguous(),
            query,
            own,
            own if context is None else context,
            doutput if dothers is None else dothers,
            dquery,
            down,
            down if dcontext is None else dcontext,
        )
        _launch(
            _attention_backward,
            pointers,
            query,
            own,
            context,
            ctx.heads,
            width,
            OTHERS=dothers is not None,
        )
        return dquery, dkey_value, dcontext, None


def _launch(
    kernel: Any,
    pointers: tuple[Tensor, ...],
    query: Tensor,
    own: Tensor,
    context: Tensor | None,
    heads: int,
    width: int,
    **flags: bool,
) -> None:
    batch, m, n = len(query), query.shape[1], own.shape[1]
    c, context_stride = (0, 0) if context is None else (context.shape[1], context.stride(1))
    size = width // heads
    tiles = {"M": tile_of(m), "N": tile_of(n), "C": tile_of(c)}
    kernel[(batch, heads)](
        *pointers,
        m,
        n,
        c,
        query.stride(1),
        own.stride(1),
        context_stride,
        size**-0.5,
        HEADS=heads,
        SIZE=size,
        **tiles,
        CONTEXT=context is not None,
        **flags,
        num_warps=1 if tiles["M"] <= 16 else 4,
    )
