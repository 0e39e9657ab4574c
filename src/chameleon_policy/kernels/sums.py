"""Sums over the partial results of a kernel's programs, always in the same order."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS, COLUMNS = 2048, 16
"""Largest tile: few columns, for many programs, and many rows, for few waits for memory."""


@triton.jit
def _sum_rows(x_, sums_, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    c = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for first in range(0, rows, ROWS):
        row = first + tl.arange(0, ROWS)
        inside = (row[:, None] < rows) & (c[None, :] < columns)
        total += tl.load(
            x_ + row[:, None].to(tl.int64) * columns + c[None, :], mask=inside, other=0.0
        )
    tl.store(sums_ + c, tl.sum(total, 0), mask=c < columns)


def sum_rows(partial: Tensor) -> Tensor:
    """Compute partial.sum(0) of float32 numbers."""
    sums = torch.empty_like(partial[0])
    columns = sums.numel()
    rows = min(ROWS, max(64, triton.next_power_of_2(len(partial))))
    _sum_rows[(triton.cdiv(columns, COLUMNS),)](
        partial,
        sums,
        len(partial),
        columns,
        ROWS=rows,
        COLUMNS=COLUMNS,
        num_warps=max(1, rows // 128),
    )
    return sums
