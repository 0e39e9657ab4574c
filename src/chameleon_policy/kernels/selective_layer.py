"""A state-space layer between its projections: convolution + SiLU, recurrence, gated RMSNorm.

It is one autograd function. The gate, the convolution's inputs and Delta stay where the input
projection wrote them, and their gradients are written side by side, so that nothing is split,
concatenated or transposed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from chameleon_policy.kernels import selective_scan, tile_of
from chameleon_policy.kernels.sums import sum_rows

TAPS = 4
"""Width of the convolution; the kernels support no other."""
CHANNELS_TOGETHER = 128
"""Channels of a program of the convolution."""
ROWS_TOGETHER = 32
"""Rows of a program of the gate's backward pass."""
CHUNKS = (64, 32, 16)
"""Possible numbers of steps in a chunk; the largest that fits is used."""
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
    """Load the row of step t; the caller does so two steps before its use, to hide the latency."""
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
    # Separate zeros: names that share a value and rotate in a loop would be compiled as constants.
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


Rates = tuple[Tensor, Tensor, Tensor]
"""The parameters of Delta and A: rate_bias, least and decay."""


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
        mixed = _convolve(run, projected, taps, tap_bias, history)
        raw, rates = run.raw_rates(projected), (rate_bias, least, decay)
        y, before, after = _recur(run, mixed, raw, rates, skip, state, keep_state)
        out, rstd = _gate(run, y, projected, norm_weight)
        ctx.save_for_backward(
            projected, mixed, y, rstd, before, taps, tap_bias, *rates, skip, norm_weight, history
        )
        ctx.run, ctx.has_state = run, state is not None
        ctx.set_materialize_grads(False)
        return out, None if after is None else run.by_token(after)

    @staticmethod
    def backward(ctx: Any, dout: Tensor | None, dafter: Tensor | None) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        projected, mixed, y, rstd, before, taps, tap_bias, *others = ctx.saved_tensors
        *rates, skip, norm_weight, history = others
        run = ctx.run
        dout = torch.zeros_like(y) if dout is None else dout.contiguous()
        dprojected = torch.empty_like(projected)
        dy, dnorm = _gate_gradients(run, dout, y, projected, norm_weight, rstd, dprojected)
        dmixed, dheads, dstate = _recurrence_gradients(
            run, dy, mixed, run.raw_rates(projected), tuple(rates), skip, before, dafter, dprojected
        )
        dtaps, dhistory = _convolution_gradients(
            run, dmixed, projected, taps, tap_bias, history, dprojected
        )
        by_tap = sum_rows(dtaps)
        rate_bias, least, decay = rates
        ddecay, dskip, dbias, dleast = sum_rows(dheads).unbind(-1)
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
            run.by_token(dstate) if dstate is not None and ctx.has_state else None,
            None,
            None,
        )


def _convolve(
    run: _Run, projected: Tensor, taps: Tensor, bias: Tensor, history: Tensor | None
) -> Tensor:
    """Compute x, B and C side by side: convolution and SiLU of the values."""
    values, mixed = run.values(projected), run.rows_of(run.channels)
    _convolution_forward[run.by_channels](
        values,
        values if history is None else history,
        taps,
        bias,
        mixed,
        run.steps,
        run.tokens,
        STRIDE=run.stride,
        CHANNELS=run.channels,
        HISTORY=history is not None,
        BLOCK=CHANNELS_TOGETHER,
        num_warps=1,
    )
    return mixed


def _recur(
    run: _Run,
    mixed: Tensor,
    raw: Tensor,
    rates: Rates,
    skip: Tensor,
    state: Tensor | None,
    keep_state: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Compute the outputs, the states before every chunk, and the state afterwards.

    States are None if they are zero or not needed.
    """
    before, after = None, None
    if state is not None or run.chunks > 1:
        before = run.states(run.chunks, dtype=mixed.dtype)
    if keep_state:
        after = run.states(1, dtype=torch.float32)
    if before is not None or after is not None:
        selective_scan._scan_states[run.by_heads](
            mixed,
            raw,
            *rates,
            mixed if state is None else state,
            mixed if before is None else before,
            mixed if after is None else after,
            *run.numbers,
            BEGIN=state is not None,
            KEEP=before is not None,
            AFTER=after is not None,
            **run.tiles,
            num_warps=WARPS["states"],
        )
    y = run.rows_of(run.shape.inner)
    selective_scan._scan_outputs[run.by_chunks](
        mixed,
        raw,
        *rates,
        skip,
        mixed if before is None else before,
        y,
        *run.numbers,
        BEFORE=before is not None,
        **run.tiles,
        num_warps=WARPS["outputs"],
    )
    return y, before, after


def _gate(run: _Run, y: Tensor, projected: Tensor, norm_weight: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the gated RMSNorm of the outputs, and 1 / RMS of every row."""
    inner, out = run.shape.inner, torch.empty_like(y)
    rstd = torch.empty(run.rows, dtype=torch.float32, device=y.device)
    _gate_forward[(run.rows,)](
        y,
        projected,
        norm_weight,
        out,
        rstd,
        run.shape.epsilon,
        STRIDE=run.stride,
        INNER=inner,
        WIDTH=triton.next_power_of_2(inner),
        num_warps=4,
    )
    return out, rstd


def _gate_gradients(
    run: _Run,
    dout: Tensor,
    y: Tensor,
    projected: Tensor,
    norm_weight: Tensor,
    rstd: Tensor,
    dprojected: Tensor,
) -> tuple[Tensor, Tensor]:
    """Write the gate's gradient to `dprojected`; return that of y, and the norm's in parts."""
    inner, programs = run.shape.inner, triton.cdiv(run.rows, ROWS_TOGETHER)
    dy = torch.empty_like(y)
    dnorm = torch.empty(programs, inner, dtype=torch.float32, device=y.device)
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
    return dy, dnorm


def _recurrence_gradients(
    run: _Run,
    dy: Tensor,
    mixed: Tensor,
    raw: Tensor,
    rates: Rates,
    skip: Tensor,
    before: Tensor | None,
    dafter: Tensor | None,
    dprojected: Tensor,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Write Delta's gradient to `dprojected`.

    Returns those of x, B and C, those of every head's parameters in parts, and that of the state
    before the first step.
    """
    dmixed, draw = torch.empty_like(mixed), run.raw_rates(dprojected)
    shape = (run.streams * run.chunks, run.shape.heads, 4)
    dheads = torch.empty(shape, dtype=torch.float32, device=dy.device)
    inputs = (dy, mixed, raw, *rates)
    selective_scan._scan_gradients[run.by_chunks](
        *inputs,
        skip,
        dmixed,
        draw,
        dheads,
        *run.numbers,
        **run.tiles,
        num_warps=WARPS["gradients"],
    )
    has_after = dafter is not None or run.chunks > 1
    if before is None and not has_after:
        return dmixed, dheads, None
    dends = run.states(run.chunks, dtype=dy.dtype)
    dstate = run.states(1, dtype=torch.float32)
    selective_scan._scan_state_gradients[run.by_heads](
        *inputs,
        dy if dafter is None else dafter.contiguous(),
        dends,
        dstate,
        *run.numbers,
        AFTER=dafter is not None,
        **run.tiles,
        num_warps=WARPS["state_gradients"],
    )
    selective_scan._scan_gradients_through_states[run.by_chunks](
        *inputs,
        dy if before is None else before,
        dends,
        dmixed,
        draw,
        dheads,
        *run.numbers,
        BEFORE=before is not None,
        AFTER=has_after,
        **run.tiles,
        num_warps=WARPS["gradients_through_states"],
    )
    return dmixed, dheads, dstate


def _convolution_gradients(
    run: _Run,
    dmixed: Tensor,
    projected: Tensor,
    taps: Tensor,
    bias: Tensor,
    history: Tensor | None,
    dprojected: Tensor,
) -> tuple[Tensor, Tensor | None]:
    """Write the values' gradient to `dprojected`.

    Returns those of taps and bias in parts, and that of the history.
    """
    values, dvalues = run.values(projected), run.values(dprojected)
    shape = (run.streams, 5, run.channels)
    dtaps = torch.empty(shape, dtype=torch.float32, device=projected.device)
    dhistory = None if history is None else torch.empty_like(history)
    _convolution_backward[run.by_channels](
        dmixed,
        values,
        values if history is None else history,
        taps,
        bias,
        dvalues,
        dvalues if dhistory is None else dhistory,
        dtaps,
        run.steps,
        run.tokens,
        STRIDE=run.stride,
        CHANNELS=run.channels,
        HISTORY=history is not None,
        BLOCK=CHANNELS_TOGETHER,
        num_warps=1,
    )
    return dtaps, dhistory


def longest_chunk(shape: LayerShape) -> int | None:
    """Return the longest chunk whose tiles fit into a block's shared memory, or None.

    `_scan_gradients_through_states` needs the most: at most 2 L N + 8 P N + 10 L P + 2048 bytes for
    tiles of L steps, P channels of a head and N numbers of state, measured by compiling it
    (`benchmarks.small_cards` checks it).
    """
    p, n = tile_of(shape.inner // shape.heads), tile_of(shape.state)
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
        assert fitting is not None, "FusedSSM checks that the layer fits"
        length = min(fitting, tile_of(shape.chunk), tile_of(self.steps))
        self.chunks = triton.cdiv(self.steps, length)
        self.tiles = {
            "SIZE": self.size,
            "STATE": shape.state,
            "CHANNELS": self.channels,
            "INNER": shape.inner,
            "P": tile_of(self.size),
            "N": tile_of(shape.state),
            "L": length,
        }
        self.numbers = (self.steps, self.tokens, self.chunks, shape.heads, self.stride)
        """Arguments that all kernels of the recurrence share."""
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

    def by_token(self, states: Tensor) -> Tensor:
        """View one state for every stream as (B tokens heads P state)."""
        return states.view(self.batch, self.tokens, self.shape.heads, self.size, self.shape.state)

    def values(self, projected: Tensor) -> Tensor:
        """Return the input projection from the convolution's inputs on."""
        return projected[..., self.shape.inner :]

    def raw_rates(self, projected: Tensor) -> Tensor:
        """Return the input projection from Delta's inputs on."""
        return projected[..., self.shape.inner + self.channels :]
