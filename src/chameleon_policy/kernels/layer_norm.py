"""LayerNorm of a residual stream plus the output of a sub-layer, in one pass over memory.

The stream keeps its own type; the normalised copy has the type of the next matrix product. The
backward pass adds the gradient of the stream and that through the norm in the same pass.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from chameleon_policy.kernels.sums import sum_rows

TILE = 4096
"""Numbers of a tile."""
PROGRAMS = 528
"""Programs of the backward pass; each sums the weights' gradients over its own rows."""


@triton.jit
def _stream_norm_forward(
    x_,
    added_,
    added_bias_,
    weight_,
    bias_,
    sum_,
    y_,
    mean_,
    rstd_,
    rows,
    epsilon,
    ADD: tl.constexpr,
    BIAS: tl.constexpr,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    c = tl.arange(0, WIDTH)
    inside = (row[:, None] < rows) & (c[None, :] < D)
    place = row[:, None] * D + c[None, :]
    x = tl.load(x_ + place, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        x += tl.load(added_ + place, mask=inside, other=0.0).to(tl.float32)
        if BIAS:
            x += tl.load(added_bias_ + c, mask=c < D, other=0.0).to(tl.float32)[None, :]
        tl.store(sum_ + place, x, mask=inside)
    mean = tl.sum(x, 1) / D
    centred = tl.where(inside, x - mean[:, None], 0.0)
    rstd = 1 / tl.sqrt(tl.sum(centred * centred, 1) / D + epsilon)
    weight = tl.load(weight_ + c, mask=c < D, other=0.0).to(tl.float32)
    bias = tl.load(bias_ + c, mask=c < D, other=0.0).to(tl.float32)
    tl.store(y_ + place, centred * rstd[:, None] * weight[None, :] + bias[None, :], mask=inside)
    tl.store(mean_ + row, mean, mask=row < rows)
    tl.store(rstd_ + row, rstd, mask=row < rows)


@triton.jit
def _stream_norm_backward(
    dy_,
    dsum_,
    x_,
    weight_,
    mean_,
    rstd_,
    dx_,
    dadded_,
    dparameters_,
    rows,
    programs,
    epochs,
    CARRY: tl.constexpr,
    ADD: tl.constexpr,
    SEPARATE: tl.constexpr,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
):
    program = tl.program_id(0)
    c = tl.arange(0, WIDTH)
    weight = tl.load(weight_ + c, mask=c < D, other=0.0).to(tl.float32)
    # Every thread keeps its sums over the rows; threads synchronise once, at the end.
    dweight = tl.zeros((ROWS, WIDTH), tl.float32)
    dbias = tl.zeros((ROWS, WIDTH), tl.float32)
    dadded_bias = tl.zeros((ROWS, WIDTH), tl.float32)
    for epoch in range(0, epochs):
        row = (epoch * programs + program).to(tl.int64) * ROWS + tl.arange(0, ROWS)
        inside = (row[:, None] < rows) & (c[None, :] < D)
        place = row[:, None] * D + c[None, :]
        x = tl.load(x_ + place, mask=inside, other=0.0).to(tl.float32)
        dy = tl.load(dy_ + place, mask=inside, other=0.0).to(tl.float32)
        mean = tl.load(mean_ + row, mask=row < rows, other=0.0)
        rstd = tl.load(rstd_ + row, mask=row < rows, other=0.0)
        xhat = tl.where(inside, (x - mean[:, None]) * rstd[:, None], 0.0)
        dweight += dy * xhat
        dbias += dy
        g = dy * weight[None, :]
        along_one = tl.sum(g, 1) / D
        along_x = tl.sum(g * xhat, 1) / D
        dx = rstd[:, None] * (g - along_one[:, None] - xhat * along_x[:, None])
        if CARRY:
            dx += tl.load(dsum_ + place, mask=inside, other=0.0).to(tl.float32)
        tl.store(dx_ + place, dx, mask=inside)
        if ADD:
            if SEPARATE:
                tl.store(dadded_ + place, dx, mask=inside)
            dadded_bias += tl.where(inside, dx, 0.0)
    here = program * 3 * D + c
    tl.store(dparameters_ + here, tl.sum(dweight, 0), mask=c < D)
    tl.store(dparameters_ + here + D, tl.sum(dbias, 0), mask=c < D)
    tl.store(dparameters_ + here + 2 * D, tl.sum(dadded_bias, 0), mask=c < D)


class StreamNorm(torch.autograd.Function):
    """The sum of a stream, an output and its bias, and the norm of the sum.

    Arguments: x, added or None, its bias or None, weight, bias, epsilon, type of the norm.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        added: Tensor | None,
        added_bias: Tensor | None,
        weight: Tensor,
        bias: Tensor,
        epsilon: float,
        kind: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        x = x.contiguous()
        width = x.shape[-1]
        rows = x.numel() // width
        added = None if added is None else added.contiguous()
        total = x.view_as(x) if added is None else torch.empty_like(x)
        y = torch.empty(x.shape, dtype=kind, device=x.device)
        mean, rstd = torch.empty(2, rows, dtype=torch.float32, device=x.device)
        padded = triton.next_power_of_2(width)
        together = max(1, TILE // padded)
        _stream_norm_forward[(triton.cdiv(rows, together),)](
            x,
            x if added is None else added,
            weight if added_bias is None else added_bias,
            weight,
            bias,
            total,
            y,
            mean,
            rstd,
            rows,
            epsilon,
            ADD=added is not None,
            BIAS=added_bias is not None,
            D=width,
            WIDTH=padded,
            ROWS=together,
            num_warps=4,
        )
        ctx.save_for_backward(total, weight, mean, rstd)
        ctx.added_kind = None if added is None else added.dtype
        ctx.bias_kind = None if added_bias is None else added_bias.dtype
        ctx.set_materialize_grads(False)
        return total, y

    @staticmethod
    def backward(ctx: Any, dtotal: Tensor | None, dy: Tensor | None) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, weight, mean, rstd = ctx.saved_tensors
        if dy is None:
            return _without_norm(ctx, dtotal)
        width = x.shape[-1]
        rows = x.numel() // width
        dy = dy.contiguous()
        dtotal = None if dtotal is None else dtotal.contiguous()
        padded = triton.next_power_of_2(width)
        together = max(1, TILE // padded)
        tiles = triton.cdiv(rows, together)
        programs = min(tiles, PROGRAMS)
        dx = torch.empty_like(x)
        # The same numbers, in the same memory if the types are the same.
        dadded = None if ctx.added_kind is None else dx
        if ctx.added_kind not in (None, x.dtype):
            dadded = torch.empty(x.shape, dtype=ctx.added_kind, device=x.device)
        partial = torch.empty(programs, 3, width, dtype=torch.float32, device=x.device)
        _stream_norm_backward[(programs,)](
            dy,
            dy if dtotal is None else dtotal,
            x,
            weight,
            mean,
            rstd,
            dx,
            dx if dadded is None else dadded,
            partial,
            rows,
            programs,
            triton.cdiv(tiles, programs),
            CARRY=dtotal is not None,
            ADD=dadded is not None,
            SEPARATE=dadded is not dx,
            D=width,
            WIDTH=padded,
            ROWS=together,
            num_warps=4,
        )
        dweight, dbias, dadded_bias = sum_rows(partial)
        return (
            dx,
            dadded,
            None if ctx.bias_kind is None else dadded_bias.to(ctx.bias_kind),
            dweight.to(weight.dtype),
            dbias.to(weight.dtype),
            None,
            None,
        )


def _without_norm(ctx: Any, dtotal: Tensor | None) -> tuple[Tensor | None, ...]:
    """Compute the gradients where nothing depends on the normalised copy."""
    if dtotal is None:
        return (None,) * 7
    dadded = None if ctx.added_kind is None else dtotal.to(ctx.added_kind)
    dadded_bias = None
    if ctx.bias_kind is not None:
        dadded_bias = dtotal.flatten(0, -2).sum(0).to(ctx.bias_kind)
    return dtotal, dadded, dadded_bias, None, None, None, None
