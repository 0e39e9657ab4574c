"""A state-space layer between its projections: convolution + SiLU, recurrence, gated RMSNorm.

It is one autograd function. Gate, x, B, C and Delta stay where the input projection wrote them, and
their gradients are written side by side, so that nothing is split, concatenated or transposed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from chameleon_policy.kernels import selective_scan
from chameleon_policy.kernels.sums import sum_rows

TAPS = 4
"""Width of the convolution that these kernels are made for."""
CHANNELS_TOGETHER = 128
ROWS_TOGETHER = 32
CHUNKS = (64, 32, 16)
"""Steps of a chunk, as many as fit."""
WARPS = {
    "states": 4,
    "outputs": 4,
    "state_gradients": 4,
    "gradients": 4,
    "gradients_through_states": 8,
}


@triton.jit
def _row_of(stream, t, steps, tokens):
    return (stream // tokens) * steps * tokens + t * tokens + stream % tokens


@triton.jit
def _past(history_, stream, back, c, channels, ok, HISTORY: tl.constexpr):
    """Return the input `back` steps before the sequence, from the three kept ones."""
    if HISTORY:
        return tl.load(history_ + (stream * 3 + back) * channels + c, mask=ok, other=0.0).to(
            tl.float32
        )
    return tl.zeros_like(c).to(tl.float32)


@triton.jit
def _tap(weight_, c, number, ok):
    return tl.load(weight_ + c * 4 + number, mask=ok, other=0.0).to(tl.float32)


@triton.jit
def _taps(weight_, c, ok):
    """Load the convolution's four weights of these channels."""
    return (
        _tap(weight_, c, 0, ok),
        _tap(weight_, c, 1, ok),
        _tap(weight_, c, 2, ok),
        _tap(weight_, c, 3, ok),
    )


@triton.jit
def _ahead(x_, stream, t, steps, tokens, c, ok, STRIDE: tl.constexpr):
    """Load the row of step t.

    It is requested two steps before its use and converted only then, which hides the latency.
    """
    there = ok & (t + tl.zeros_like(c) < steps)
    return tl.load(x_ + _row_of(stream, t, steps, tokens) * STRIDE + c, mask=there, other=0.0)


@triton.jit
def _convolution_forward(
    x_,
    history_,
    weight_,
    bias_,
    y_,
    steps,
    tokens,
    STRIDE: tl.constexpr,
    CHANNELS: tl.constexpr,
    HISTORY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Compute y_t = silu(bias + sum_k weight_k x_{t - 3 + k}) of one stream, step by step."""
    stream = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    ok = c < CHANNELS
    w0, w1, w2, w3 = _taps(weight_, c, ok)
    bias = tl.load(bias_ + c, mask=ok, other=0.0).to(tl.float32)
    x0 = _past(history_, stream, 0, c, CHANNELS, ok, HISTORY)
    x1 = _past(history_, stream, 1, c, CHANNELS, ok, HISTORY)
    x2 = _past(history_, stream, 2, c, CHANNELS, ok, HISTORY)
    x, x_next = (
        _ahead(x_, stream, 0, steps, tokens, c, ok, STRIDE),
        _ahead(x_, stream, 1, steps, tokens, c, ok, STRIDE),
    )
    for t in range(0, steps):
        x_later = _ahead(x_, stream, t + 2, steps, tokens, c, ok, STRIDE)
        x3 = x.to(tl.float32)
        z = bias + w0 * x0 + w1 * x1 + w2 * x2 + w3 * x3
        tl.store(y_ + _row_of(stream, t, steps, tokens) * CHANNELS + c, z * tl.sigmoid(z), mask=ok)
        x0, x1, x2 = x1, x2, x3
        x, x_next = x_next, x_later


@triton.jit
def _convolution_backward(
    dy_,
    x_,
    history_,
    weight_,
    bias_,
    dx_,
    dhistory_,
    dparameters_,
    steps,
    tokens,
    STRIDE: tl.constexpr,
    CHANNELS: tl.constexpr,
    HISTORY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    stream = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    ok = c < CHANNELS
    w0, w1, w2, w3 = _taps(weight_, c, ok)
    bias = tl.load(bias_ + c, mask=ok, other=0.0).to(tl.float32)
    x0 = _past(history_, stream, 0, c, CHANNELS, ok, HISTORY)
    x1 = _past(history_, stream, 1, c, CHANNELS, ok, HISTORY)
    x2 = _past(history_, stream, 2, c, CHANNELS, ok, HISTORY)
    g0, g1 = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    g2, g3 = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    db = tl.zeros((BLOCK,), tl.float32)
    # Separate zeros: the compiler takes names that share a value and rotate in a loop for constants.
    d0, d1, d2 = (
        tl.zeros((BLOCK,), tl.float32),
        tl.zeros((BLOCK,), tl.float32),
        tl.zeros((BLOCK,), tl.float32),
    )
    # dx_t needs dz_t ... dz_{t+3}: it is written three steps later. d0 .. d3 are dz of t-3 .. t.
    x, x_next = (
        _ahead(x_, stream, 0, steps, tokens, c, ok, STRIDE),
        _ahead(x_, stream, 1, steps, tokens, c, ok, STRIDE),
    )
    dy, dy_next = (
        _ahead(dy_, stream, 0, steps, tokens, c, ok, CHANNELS),
        _ahead(dy_, stream, 1, steps, tokens, c, ok, CHANNELS),
    )
    for t in range(0, steps + 3):
        x_later = _ahead(x_, stream, t + 2, steps, tokens, c, ok, STRIDE)
        dy_later = _ahead(dy_, stream, t + 2, steps, tokens, c, ok, CHANNELS)
        x3 = x.to(tl.float32)
        z = bias + w0 * x0 + w1 * x1 + w2 * x2 + w3 * x3
        s = tl.sigmoid(z)
        d3 = dy.to(tl.float32) * s * (1 + z * (1 - s))
        g0 += d3 * x0
        g1 += d3 * x1
        g2 += d3 * x2
        g3 += d3 * x3
        db += d3
        dx = w3 * d0 + w2 * d1 + w1 * d2 + w0 * d3
        if t >= 3:
            tl.store(dx_ + _row_of(stream, t - 3, steps, tokens) * STRIDE + c, dx, mask=ok)
        elif HISTORY:
            tl.store(dhistory_ + (stream * 3 + t) * CHANNELS + c, dx, mask=ok)
        d0, d1, d2 = d1, d2, d3
        x0, x1, x2 = x1, x2, x3
        x, x_next = x_next, x_later
        dy, dy_next = dy_next, dy_later
    here = dparameters_ + stream * 5 * CHANNELS + c
    tl.store(here, g0, mask=ok)
    tl.store(here + CHANNELS, g1, mask=ok)
    tl.store(here + 2 * CHANNELS, g2, mask=ok)
    tl.store(here + 3 * CHANNELS, g3, mask=ok)
    tl.store(here + 4 * CHANNELS, db, mask=ok)


@triton.jit
def _gate_forward(
    y_,
    gate_,
    weight_,
    out_,
    rstd_,
    epsilon,
    STRIDE: tl.constexpr,
    INNER: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Compute out = rms_norm(y silu(gate)) for one row."""
    row = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, WIDTH)
    ok = c < INNER
    gate = tl.load(gate_ + row * STRIDE + c, mask=ok, other=0.0).to(tl.float32)
    g = tl.load(y_ + row * INNER + c, mask=ok, other=0.0).to(tl.float32) * gate * tl.sigmoid(gate)
    rstd = 1 / tl.sqrt(tl.sum(g * g, 0) / INNER + epsilon)
    tl.store(rstd_ + row, rstd)
    tl.store(
        out_ + row * INNER + c,
        g * rstd * tl.load(weight_ + c, mask=ok, other=0.0).to(tl.float32),
        mask=ok,
    )


@triton.jit
def _gate_backward(
    dout_,
    y_,
    gate_,
    weight_,
    rstd_,
    dy_,
    dgate_,
    dweight_,
    rows,
    STRIDE: tl.constexpr,
    ROWS: tl.constexpr,
    INNER: tl.constexpr,
    WIDTH: tl.constexpr,
):
    first = tl.program_id(0).to(tl.int64) * ROWS
    c = tl.arange(0, WIDTH)
    weight = tl.load(weight_ + c, mask=c < INNER, other=0.0).to(tl.float32)
    dweight = tl.zeros((WIDTH,), tl.float32)
    for i in range(0, ROWS):
        row = first + i
        ok = (c < INNER) & (row + tl.zeros((WIDTH,), tl.int64) < rows)
        gate = tl.load(gate_ + row * STRIDE + c, mask=ok, other=0.0).to(tl.float32)
        y = tl.load(y_ + row * INNER + c, mask=ok, other=0.0).to(tl.float32)
        dout = tl.load(dout_ + row * INNER + c, mask=ok, other=0.0).to(tl.float32)
        rstd = tl.load(rstd_ + tl.minimum(row, rows - 1))
        s = tl.sigmoid(gate)
        silu = gate * s
        g = y * silu
        dweight += dout * g * rstd
        dn = dout * weight
        dg = rstd * (dn - g * rstd * rstd * tl.sum(dn * g, 0) / INNER)
        tl.store(dy_ + row * INNER + c, dg * silu, mask=ok)
        tl.store(dgate_ + row * STRIDE + c, dg * y * s * (1 + gate * (1 - s)), mask=ok)
    tl.store(dweight_ + tl.program_id(0).to(tl.int64) * INNER + c, dweight, mask=c < INNER)


class LayerShape(NamedTuple):
    """The sizes of a state-space layer."""

    inner: int
    state: int
    heads: int
    chunk: int
    epsilon: float
    shared_memory: int
    """Bytes that a block of threads may have."""


class SelectiveLayer(torch.autograd.Function):
    """Everything between the two projections of a state-space layer.

    Arguments: the input projection (B T tokens width), the layer's parameters (`least` is the lower
    bound of Delta per head), and the state before: the convolution's history (B tokens 3 channels)
    and the recurrent state (B tokens heads P state), both None at the start. Returns the inputs of
    the output projection and the recurrent state afterwards.
    """

    @staticmethod
    def forward(
        ctx: Any,
        projected: Tensor,
        taps: Tensor,
        tap_bias: Tensor,
        rate_bias: Tensor,
        decay: Tensor,
        least: Tensor,
        skip: Tensor,
        norm_weight: Tensor,
        history: Tensor | None,
        state: Tensor | None,
        shape: LayerShape,
        keep_state: bool,
    ) -> tuple[Tensor, Tensor | None]:
        projected = projected.contiguous()
        history, state = (
            None if tensor is None else tensor.contiguous() for tensor in (history, state)
        )
        run = _Run(projected, shape)
        mixed, y, out = (run.rows_of(size) for size in (run.channels, shape.inner, shape.inner))
        before = (
            run.states(run.chunks, dtype=projected.dtype)
            if state is not None or run.chunks > 1
            else None
        )
        after = run.states(1, dtype=torch.float32) if keep_state else None
        rstd = torch.empty(run.rows, dtype=torch.float32, device=projected.device)
        values, raw = projected[..., shape.inner :], projected[..., shape.inner + run.channels :]
        _convolution_forward[run.by_channels](
            values,
            values if history is None else history,
            taps,
            tap_bias,
            mixed,
            run.steps,
            run.tokens,
            STRIDE=run.stride,
            CHANNELS=run.channels,
            HISTORY=history is not None,
            BLOCK=CHANNELS_TOGETHER,
            num_warps=1,
        )
        numbers = (run.steps, run.tokens, run.chunks, shape.heads, run.stride)
        if before is not None or after is not None:
            selective_scan._scan_states[run.by_heads](
                mixed,
                raw,
                rate_bias,
                least,
                decay,
                mixed if state is None else state,
                mixed if before is None else before,
                mixed if after is None else after,
                *numbers,
                BEGIN=state is not None,
                KEEP=before is not None,
                AFTER=after is not None,
                **run.tiles,
                num_warps=WARPS["states"],
            )
        selective_scan._scan_outputs[run.by_chunks](
            mixed,
            raw,
            rate_bias,
            least,
            decay,
            skip,
            mixed if before is None else before,
            y,
            *numbers,
            BEFORE=before is not None,
            **run.tiles,
            num_warps=WARPS["outputs"],
        )
        width = triton.next_power_of_2(shape.inner)
        _gate_forward[(run.rows,)](
            y,
            projected,
            norm_weight,
            out,
            rstd,
            shape.epsilon,
            STRIDE=run.stride,
            INNER=shape.inner,
            WIDTH=width,
            num_warps=4,
        )
        ctx.save_for_backward(
            projected,
            mixed,
            y,
            rstd,
            before,
            taps,
            tap_bias,
            rate_bias,
            least,
            decay,
            skip,
            norm_weight,
            history,
        )
        ctx.run, ctx.shape, ctx.has_state = run, shape, state is not None
        ctx.set_materialize_grads(False)
        return out, None if after is None else after.view(
            run.batch, run.tokens, shape.heads, run.size, shape.state
        )

    @staticmethod
    def backward(ctx: Any, dout: Tensor | None, dafter: Tensor | None) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        (
            projected,
            mixed,
            y,
            rstd,
            before,
            taps,
            tap_bias,
            rate_bias,
            least,
            decay,
            skip,
            norm_weight,
            history,
        ) = ctx.saved_tensors
        run, shape = ctx.run, ctx.shape
        inner, channels, device = shape.inner, run.channels, projected.device
        dout = torch.zeros_like(y) if dout is None else dout.contiguous()
        dprojected, dy, dmixed = (
            torch.empty_like(projected),
            torch.empty_like(y),
            torch.empty_like(mixed),
        )
        dvalues, draw = dprojected[..., inner:], dprojected[..., inner + channels :]
        values, raw = projected[..., inner:], projected[..., inner + channels :]
        programs = triton.cdiv(run.rows, ROWS_TOGETHER)
        dnorm = torch.empty(programs, inner, dtype=torch.float32, device=device)
        _gate_backward[(programs,)](
            dout,
            y,
            projected,
            norm_weight,
            rstd,
            dy,
            dprojected,
            dnorm,
            run.rows,
            STRIDE=run.stride,
            ROWS=ROWS_TOGETHER,
            INNER=inner,
            WIDTH=triton.next_power_of_2(inner),
            num_warps=4,
        )
        numbers = (run.steps, run.tokens, run.chunks, shape.heads, run.stride)
        dheads = torch.empty(
            run.streams * run.chunks, shape.heads, 4, dtype=torch.float32, device=device
        )
        selective_scan._scan_gradients[run.by_chunks](
            dy,
            mixed,
            raw,
            rate_bias,
            least,
            decay,
            skip,
            dmixed,
            draw,
            dheads,
            *numbers,
            **run.tiles,
            num_warps=WARPS["gradients"],
        )
        dstate = None
        after = dafter is not None or run.chunks > 1
        if before is not None or after:
            dends = run.states(run.chunks, dtype=projected.dtype)
            dstate = run.states(1, dtype=torch.float32)
            selective_scan._scan_state_gradients[run.by_heads](
                dy,
                mixed,
                raw,
                rate_bias,
                least,
                decay,
                dy if dafter is None else dafter.contiguous(),
                dends,
                dstate,
                *numbers,
                AFTER=dafter is not None,
                **run.tiles,
                num_warps=WARPS["state_gradients"],
            )
            selective_scan._scan_gradients_through_states[run.by_chunks](
                dy,
                mixed,
                raw,
                rate_bias,
                least,
                decay,
                dy if before is None else before,
                dends,
                dmixed,
                draw,
                dheads,
                *numbers,
                BEFORE=before is not None,
                AFTER=after,
                **run.tiles,
                num_warps=WARPS["gradients_through_states"],
            )
        dtaps = torch.empty(run.streams, 5, channels, dtype=torch.float32, device=device)
        dhistory = None if history is None else torch.empty_like(history)
        _convolution_backward[run.by_channels](
            dmixed,
            values,
            values if history is None else history,
            taps,
            tap_bias,
            dvalues,
            dvalues if dhistory is None else dhistory,
            dtaps,
            run.steps,
            run.tokens,
            STRIDE=run.stride,
            CHANNELS=channels,
            HISTORY=history is not None,
            BLOCK=CHANNELS_TOGETHER,
            num_warps=1,
        )
        by_tap = sum_rows(dtaps)
        ddecay, dskip, dbias, dleast = sum_rows(dheads).unbind(-1)
        if dstate is not None:
            dstate = (
                dstate.view(run.batch, run.tokens, shape.heads, run.size, shape.state)
                if ctx.has_state
                else None
            )
        return (
            dprojected,
            by_tap[:4].mT.to(taps.dtype),
            by_tap[4].to(tap_bias.dtype),
            dbias.to(rate_bias.dtype),
            ddecay.to(decay.dtype),
            dleast.to(least.dtype),
            dskip.to(skip.dtype),
            sum_rows(dnorm).to(norm_weight.dtype),
            dhistory,
            dstate,
            None,
            None,
        )


def _tile(size: int) -> int:
    return max(16, triton.next_power_of_2(size))


def longest_chunk(shape: LayerShape) -> int | None:
    """Return the longest chunk whose tiles fit into a block's shared memory, or None.

    `_scan_gradients_through_states` needs the most: at most 2 L N + 8 P N + 10 L P + 2048 bytes for
    tiles of L steps, P channels of a head and N numbers of state, measured by compiling it
    (`benchmarks.small_cards` checks it).
    """
    p, n = _tile(shape.inner // shape.heads), _tile(shape.state)
    return next(
        (c for c in CHUNKS if 2 * c * n + 8 * p * n + 10 * c * p + 2048 <= shape.shared_memory),
        None,
    )


class _Run:
    """The sizes, grids and tiles of one call."""

    def __init__(self, projected: Tensor, shape: LayerShape) -> None:
        self.batch, self.steps, self.tokens, self.stride = projected.shape
        self.projected, self.shape = projected.new_empty(0), shape
        self.streams, self.rows = self.batch * self.tokens, self.batch * self.tokens * self.steps
        self.size, self.channels = shape.inner // shape.heads, shape.inner + 2 * shape.state
        fitting = longest_chunk(shape)
        assert fitting is not None, "FusedSSM asks before"
        length = max(
            16,
            min(fitting, triton.next_power_of_2(shape.chunk), triton.next_power_of_2(self.steps)),
        )
        self.chunks = triton.cdiv(self.steps, length)
        self.tiles = {
            "SIZE": self.size,
            "STATE": shape.state,
            "CHANNELS": self.channels,
            "INNER": shape.inner,
            "P": _tile(self.size),
            "N": _tile(shape.state),
            "L": length,
        }
        self.by_channels = (self.streams, triton.cdiv(self.channels, CHANNELS_TOGETHER))
        self.by_heads = (self.streams, shape.heads)
        self.by_chunks = (self.streams, self.chunks)

    def rows_of(self, width: int) -> Tensor:
        """Make an empty tensor with a row for every step."""
        return self.projected.new_empty(self.batch, self.steps, self.tokens, width)

    def states(self, count: int, dtype: torch.dtype) -> Tensor:
        """Make empty states, `count` for every stream."""
        return self.projected.new_empty(
            self.streams, count, self.shape.heads, self.size, self.shape.state, dtype=dtype
        )
