"""gelu(x + bias) in one pass, and its gradients of x and bias in another.

The bias is shared by all rows, or by a fixed number of consecutive rows.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from chameleon_policy.kernels.sums import sum_rows

PROGRAMS = 2112
"""Programs of the backward pass for a layer's bias; each sums its gradient over its own rows."""
TILE = {"ROWS": 2, "num_warps": 2}
WIDEST = 512
"""Largest number of columns of a tile."""


@triton.jit
def _normal(z):
    """Compute exp(-z^2 / 2) and the normal distribution function of z, to 1e-7.

    erf is Abramowitz and Stegun 7.1.26, which needs the exponential anyway; the library's erf takes
    longer than the memory access.
    """
    bell = tl.exp(-0.5 * z * z)
    t = 1 / (1 + 0.2316418882663604 * tl.abs(z))
    tail = (
        t
        * (
            0.127414796
            + t * (-0.142248368 + t * (0.7107068705 + t * (-0.7265760135 + t * 0.5307027145)))
        )
        * bell
    )
    return bell, tl.where(z < 0, tail, 1 - tail)


@triton.jit
def _gelu_forward(
    x_,
    bias_,
    y_,
    rows,
    share,
    LAYER: tl.constexpr,
    D: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = (row[:, None] < rows) & (c[None, :] < D)
    place = row[:, None] * D + c[None, :]
    z = tl.load(x_ + place, mask=inside, other=0.0).to(tl.float32)
    if LAYER:
        z += tl.load(bias_ + c, mask=c < D, other=0.0).to(tl.float32)[None, :]
    else:
        group = row.to(tl.int32) // share
        z += tl.load(
            bias_ + group[:, None].to(tl.int64) * D + c[None, :], mask=inside, other=0.0
        ).to(tl.float32)
    _, below = _normal(z)
    tl.store(y_ + place, z * below, mask=inside)


@triton.jit
def _gelu_backward(
    dy_,
    x_,
    bias_,
    dx_,
    dbias_,
    rows,
    each,
    share,
    D: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Compute the gradients of `each` consecutive rows that share a bias."""
    program = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    bias = tl.load(bias_ + program * each // share * D + c, mask=c < D, other=0.0).to(tl.float32)
    dbias = tl.zeros((ROWS, BLOCK), tl.float32)
    last = tl.minimum((program + 1) * each, rows)
    for first in range(0, each, ROWS):
        row = program * each + first + tl.arange(0, ROWS)
        inside = (row[:, None] < last) & (c[None, :] < D)
        place = row[:, None] * D + c[None, :]
        z = tl.load(x_ + place, mask=inside, other=0.0).to(tl.float32) + bias[None, :]
        dy = tl.load(dy_ + place, mask=inside, other=0.0).to(tl.float32)
        bell, below = _normal(z)
        dx = dy * (below + z * bell * 0.3989422804014327)
        dbias += dx
        tl.store(dx_ + place, dx, mask=inside)
    tl.store(dbias_ + program * D + c, tl.sum(dbias, 0), mask=c < D)


class BiasGelu(torch.autograd.Function):
    """gelu(x + bias) of x (... N D) and bias (D) or (... 1 D)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor) -> Tensor:
        x, bias = x.contiguous(), bias.contiguous()
        y = torch.empty_like(x)
        ctx.save_for_backward(x, bias)
        width = x.shape[-1]
        rows, block = x.numel() // width, min(WIDEST, triton.next_power_of_2(width))
        _gelu_forward[(triton.cdiv(rows, TILE["ROWS"]), triton.cdiv(width, block))](
            x, bias, y, rows, _share(x, bias), LAYER=bias.dim() == 1, D=width, BLOCK=block, **TILE
        )
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        x, bias = ctx.saved_tensors
        dy = dy.contiguous()
        width = x.shape[-1]
        rows, share = x.numel() // width, _share(x, bias)
        block = min(WIDEST, triton.next_power_of_2(width))
        together = share if bias.dim() > 1 else max(TILE["ROWS"], triton.cdiv(rows, PROGRAMS))
        programs = triton.cdiv(rows, together)
        dx = torch.empty_like(x)
        partial = torch.empty(programs, width, dtype=torch.float32, device=x.device)
        _gelu_backward[(programs, triton.cdiv(width, block))](
            dy, x, bias, dx, partial, rows, together, share, D=width, BLOCK=block, **TILE
        )
        dbias = partial.view_as(bias) if bias.dim() > 1 else sum_rows(partial)
        return dx, dbias.to(bias.dtype)


def _share(x: Tensor, bias: Tensor) -> int:
    """Return the number of rows that share a bias."""
    return x.numel() // bias.numel()
