"""The gradient of a linear layer's bias, a sum over all rows, in one pass over memory."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from chameleon_policy.kernels.sums import sum_rows

PROGRAMS = 1056
"""Largest number of programs."""
ROWS = 8
"""Rows of a tile."""


@triton.jit
def _column_sums(
    x_, sums_, rows, programs, D: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr
):
    program = tl.program_id(0)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    for first in range(program * ROWS, rows, programs * ROWS):
        row = first + tl.arange(0, ROWS)
        inside = (row[:, None] < rows) & (c[None, :] < D)
        total += tl.load(
            x_ + row[:, None].to(tl.int64) * D + c[None, :], mask=inside, other=0.0
        ).to(tl.float32)
    tl.store(sums_ + program * D + c, tl.sum(total, 0), mask=c < D)


class WithBias(torch.autograd.Function):
    """An identity on a layer's output (... D) that passes gradients to its bias (D).

    The output already contains the bias.
    """

    @staticmethod
    def forward(ctx: Any, output: Tensor, bias: Tensor) -> Tensor:
        ctx.kind = bias.dtype
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, doutput: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        doutput = doutput.contiguous()
        width = doutput.shape[-1]
        rows, block = doutput.numel() // width, min(512, triton.next_power_of_2(width))
        blocks = triton.cdiv(width, block)
        programs = min(triton.cdiv(rows, ROWS), PROGRAMS // blocks)
        partial = torch.empty(programs, width, dtype=torch.float32, device=doutput.device)
        _column_sums[(programs, blocks)](
            doutput, partial, rows, programs, D=width, BLOCK=block, ROWS=ROWS, num_warps=4
        )
        return doutput, sum_rows(partial).to(ctx.kind)
