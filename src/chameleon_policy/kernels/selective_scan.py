"""The selective recurrence of `policy/ssm.py`, chunk by chunk.

Inside a chunk of L steps, cum_t is the sum of Delta A up to and with step t, u_t = Delta_t x_t, and

    y_t    = sum_{s <= t} exp(cum_t - cum_s) (C_t . B_s) u_s + exp(cum_t) state C_t + D x_t
    state' = exp(cum_L) state + sum_s exp(cum_L - cum_s) u_s (outer) B_s

`_scan_states` walks over the chunks of one stream and head and keeps the state before each chunk;
`_scan_outputs` then computes all chunks in parallel. B and C are shared by the heads, so one
program handles all heads of a chunk: it computes C_t . B_s once, and sums the gradients of B and C
without a copy per head. In the backward pass, `_scan_gradients` computes the gradients inside the
chunks, `_scan_state_gradients` walks back over the states, and `_scan_gradients_through_states`
adds the gradients that pass through the states.

Rows of memory are time-major, (batch T tokens channels): a stream is one token, and its next step
is `tokens` rows further on. x, B and C lie side by side in `mixed`; the raw Delta is a part of the
input projection.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _first_row(stream, steps, tokens):
    return (stream // tokens) * steps * tokens + stream % tokens


@triton.jit
def _softplus(x):
    # Far below zero 1 + exp(x) rounds to 1, and softplus is exp(x) itself.
    return tl.where(
        x < -8, tl.exp(tl.minimum(x, 0.0)), tl.maximum(x, 0.0) + tl.log(1 + tl.exp(-tl.abs(x)))
    )


@triton.jit
def _rates(raw_, bias_, least_, row, head, inside, raw_stride):
    """Compute Delta = max(softplus(raw + bias), least), zero outside, and its slope over raw."""
    raw = tl.load(raw_ + row * raw_stride + head, mask=inside, other=0.0).to(tl.float32)
    raw += tl.load(bias_ + head).to(tl.float32)
    least = tl.load(least_ + head).to(tl.float32)
    free = _softplus(raw)
    return tl.where(inside, tl.maximum(free, least), 0.0), tl.where(
        free >= least, tl.sigmoid(raw), 0.0
    )


@triton.jit
def _scan_states(
    mixed_,
    raw_,
    bias_,
    least_,
    decay_,
    state_,
    before_,
    after_,
    steps,
    tokens,
    chunks,
    heads,
    raw_stride,
    BEGIN: tl.constexpr,
    KEEP: tl.constexpr,
    AFTER: tl.constexpr,
    SIZE: tl.constexpr,
    STATE: tl.constexpr,
    CHANNELS: tl.constexpr,
    INNER: tl.constexpr,
    P: tl.constexpr,
    N: tl.constexpr,
    L: tl.constexpr,
):
    """Compute the state before every chunk (if KEEP), and after the last one (if AFTER).

    BEGIN: the first state is given; otherwise it is zero.
    """
    stream, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    t, p, n = tl.arange(0, L), tl.arange(0, P), tl.arange(0, N)
    real = (p[:, None] < SIZE) & (n[None, :] < STATE)
    inner_place = p[:, None] * STATE + n[None, :]
    decay = tl.load(decay_ + head).to(tl.float32)
    state = tl.zeros((P, N), tl.float32)
    if BEGIN:
        state += tl.load(
            state_ + (stream * heads + head) * SIZE * STATE + inner_place, mask=real, other=0.0
        ).to(tl.float32)
    first = _first_row(stream, steps, tokens)
    mixed_ += first * CHANNELS
    raw_ += first * raw_stride
    for chunk in range(0, chunks):
        if KEEP:
            tl.store(
                before_ + ((stream * chunks + chunk) * heads + head) * SIZE * STATE + inner_place,
                state,
                mask=real,
            )
        row = (chunk * L + t) * tokens
        inside = chunk * L + t < steps
        at = row[:, None] * CHANNELS
        x = tl.load(
            mixed_ + at + head * SIZE + p[None, :],
            mask=inside[:, None] & (p[None, :] < SIZE),
            other=0.0,
        )
        write = tl.load(
            mixed_ + at + INNER + n[None, :], mask=inside[:, None] & (n[None, :] < STATE), other=0.0
        )
        rate, _ = _rates(raw_, bias_, least_, row, head, inside, raw_stride)
        step = rate * decay
        end = tl.sum(step, 0)
        arriving = x.to(tl.float32) * (rate * tl.exp(end - tl.cumsum(step, 0)))[:, None]
        state = state * tl.exp(end) + tl.dot(
            tl.trans(arriving).to(write.dtype), write, input_precision="ieee"
        )
    if AFTER:
        tl.store(after_ + (stream * heads + head) * SIZE * STATE + inner_place, state, mask=real)


@triton.jit
def _scan_outputs(
    mixed_,
    raw_,
    bias_,
    least_,
    decay_,
    skip_,
    before_,
    y_,
    steps,
    tokens,
    chunks,
    heads,
    raw_stride,
    BEFORE: tl.constexpr,
    SIZE: tl.constexpr,
    STATE: tl.constexpr,
    CHANNELS: tl.constexpr,
    INNER: tl.constexpr,
    P: tl.constexpr,
    N: tl.constexpr,
    L: tl.constexpr,
):
    """Compute y of one chunk of one stream, all heads.

    BEFORE: the state before the chunk may not be zero.
    """
    stream, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    t, p, n = tl.arange(0, L), tl.arange(0, P), tl.arange(0, N)
    first = _first_row(stream, steps, tokens)  # offsets from here on have 32 bits
    mixed_ += first * CHANNELS
    raw_ += first * raw_stride
    y_ += first * INNER
    row = (chunk * L + t) * tokens
    inside = chunk * L + t < steps
    at = row[:, None] * CHANNELS
    real_n = inside[:, None] & (n[None, :] < STATE)
    real_p = inside[:, None] & (p[None, :] < SIZE)
    write = tl.load(mixed_ + at + INNER + n[None, :], mask=real_n, other=0.0)
    read = tl.load(mixed_ + at + INNER + STATE + n[None, :], mask=real_n, other=0.0)
    kind = write.dtype
    products = tl.dot(read, tl.trans(write), input_precision="ieee")
    for head in range(0, heads):
        x = tl.load(mixed_ + at + head * SIZE + p[None, :], mask=real_p, other=0.0)
        rate, _ = _rates(raw_, bias_, least_, row, head, inside, raw_stride)
        cum = tl.cumsum(rate * tl.load(decay_ + head).to(tl.float32), 0)
        between = tl.where(t[:, None] >= t[None, :], tl.exp(cum[:, None] - cum[None, :]), 0.0)
        u = (x.to(tl.float32) * rate[:, None]).to(kind)
        y = tl.dot((products * between).to(kind), u, input_precision="ieee")
        if BEFORE:
            there = ((stream * chunks + chunk) * heads + head) * SIZE * STATE
            state = tl.load(
                before_ + there + (p[:, None] * STATE + n[None, :]),
                mask=(p[:, None] < SIZE) & (n[None, :] < STATE),
                other=0.0,
            )
            y += tl.dot(read, tl.trans(state), input_precision="ieee") * tl.exp(cum)[:, None]
        y += tl.load(skip_ + head).to(tl.float32) * x.to(tl.float32)
        tl.store(y_ + row[:, None] * INNER + head * SIZE + p[None, :], y, mask=real_p)


@triton.jit
def _scan_state_gradients(
    dy_,
    mixed_,
    raw_,
    bias_,
    least_,
    decay_,
    dafter_,
    dends_,
    dstate_,
    steps,
    tokens,
    chunks,
    heads,
    raw_stride,
    AFTER: tl.constexpr,
    SIZE: tl.constexpr,
    STATE: tl.constexpr,
    CHANNELS: tl.constexpr,
    INNER: tl.constexpr,
    P: tl.constexpr,
    N: tl.constexpr,
    L: tl.constexpr,
):
    """Compute the gradient of the state after every chunk, and before the first one.

    AFTER: the gradient after the last chunk is given.
    """
    stream, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    t, p, n = tl.arange(0, L), tl.arange(0, P), tl.arange(0, N)
    real = (p[:, None] < SIZE) & (n[None, :] < STATE)
    inner_place = p[:, None] * STATE + n[None, :]
    decay = tl.load(decay_ + head).to(tl.float32)
    dstate = tl.zeros((P, N), tl.float32)
    if AFTER:
        dstate += tl.load(
            dafter_ + (stream * heads + head) * SIZE * STATE + inner_place, mask=real, other=0.0
        ).to(tl.float32)
    first = _first_row(stream, steps, tokens)
    mixed_ += first * CHANNELS
    raw_ += first * raw_stride
    dy_ += first * INNER
    for back in range(0, chunks):
        chunk = chunks - 1 - back
        tl.store(
            dends_ + ((stream * chunks + chunk) * heads + head) * SIZE * STATE + inner_place,
            dstate,
            mask=real,
        )
        row = (chunk * L + t) * tokens
        inside = chunk * L + t < steps
        real_p = inside[:, None] & (p[None, :] < SIZE)
        read_place = row[:, None] * CHANNELS + INNER + STATE + n[None, :]
        read = tl.load(mixed_ + read_place, mask=inside[:, None] & (n[None, :] < STATE), other=0.0)
        dy = tl.load(
            dy_ + row[:, None] * INNER + head * SIZE + p[None, :], mask=real_p, other=0.0
        ).to(tl.float32)
        rate, _ = _rates(raw_, bias_, least_, row, head, inside, raw_stride)
        step = rate * decay
        since = tl.exp(tl.cumsum(step, 0))
        weighed = tl.trans(dy * since[:, None]).to(read.dtype)
        dstate = dstate * tl.exp(tl.sum(step, 0)) + tl.dot(weighed, read, input_precision="ieee")
    tl.store(dstate_ + (stream * heads + head) * SIZE * STATE + inner_place, dstate, mask=real)


@triton.jit
def _scan_gradients(
    dy_,
    mixed_,
    raw_,
    bias_,
    least_,
    decay_,
    skip_,
    dmixed_,
    draw_,
    dheads_,
    steps,
    tokens,
    chunks,
    heads,
    raw_stride,
    SIZE: tl.constexpr,
    STATE: tl.constexpr,
    CHANNELS: tl.constexpr,
    INNER: tl.constexpr,
    P: tl.constexpr,
    N: tl.constexpr,
    L: tl.constexpr,
):
    """Compute gradients of x, B, C and Delta inside one chunk, all heads."""
    stream, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    t, p, n = tl.arange(0, L), tl.arange(0, P), tl.arange(0, N)
    first = _first_row(stream, steps, tokens)  # offsets from here on have 32 bits
    mixed_ += first * CHANNELS
    dmixed_ += first * CHANNELS
    raw_ += first * raw_stride
    draw_ += first * raw_stride
    dy_ += first * INNER
    row = (chunk * L + t) * tokens
    inside = chunk * L + t < steps
    at = row[:, None] * CHANNELS
    real_n = inside[:, None] & (n[None, :] < STATE)
    real_p = inside[:, None] & (p[None, :] < SIZE)
    write = tl.load(mixed_ + at + INNER + n[None, :], mask=real_n, other=0.0)
    read = tl.load(mixed_ + at + INNER + STATE + n[None, :], mask=real_n, other=0.0)
    kind = write.dtype
    products = tl.dot(read, tl.trans(write), input_precision="ieee")
    dproducts = tl.zeros((L, L), tl.float32)
    for head in range(0, heads):
        x = tl.load(mixed_ + at + head * SIZE + p[None, :], mask=real_p, other=0.0).to(tl.float32)
        dy = tl.load(dy_ + row[:, None] * INNER + head * SIZE + p[None, :], mask=real_p, other=0.0)
        rate, slope = _rates(raw_, bias_, least_, row, head, inside, raw_stride)
        decay, skip = tl.load(decay_ + head).to(tl.float32), tl.load(skip_ + head).to(tl.float32)
        cum = tl.cumsum(rate * decay, 0)
        between = tl.where(t[:, None] >= t[None, :], tl.exp(cum[:, None] - cum[None, :]), 0.0)
        through = (
            tl.dot(dy, tl.trans((x * rate[:, None]).to(kind)), input_precision="ieee") * between
        )
        dproducts += through
        by_decay = through * products
        du = tl.dot(tl.trans((products * between).to(kind)), dy, input_precision="ieee")
        dcum = tl.sum(by_decay, 1) - tl.sum(by_decay, 0)
        dstep = tl.where(inside, tl.cumsum(dcum, 0, reverse=True), 0.0)
        drate = dstep * decay + tl.sum(du * x, 1)
        draw = drate * slope
        wide_dy = dy.to(tl.float32)
        tl.store(
            dmixed_ + at + head * SIZE + p[None, :],
            du * rate[:, None] + skip * wide_dy,
            mask=real_p,
        )
        tl.store(draw_ + row * raw_stride + head, draw, mask=inside)
        here = dheads_ + ((stream * chunks + chunk) * heads + head) * 4
        tl.store(here, tl.sum(dstep * rate, 0))
        tl.store(here + 1, tl.sum(tl.sum(wide_dy * x, 1), 0))
        tl.store(here + 2, tl.sum(tl.where(inside, draw, 0.0), 0))
        tl.store(here + 3, tl.sum(tl.where(inside & (slope == 0), drate, 0.0), 0))
    dproducts = dproducts.to(kind)
    dwrite = tl.dot(tl.trans(dproducts), read, input_precision="ieee")
    tl.store(dmixed_ + at + INNER + n[None, :], dwrite, mask=real_n)
    dread = tl.dot(dproducts, write, input_precision="ieee")
    tl.store(dmixed_ + at + INNER + STATE + n[None, :], dread, mask=real_n)


@triton.jit
def _scan_gradients_through_states(
    dy_,
    mixed_,
    raw_,
    bias_,
    least_,
    decay_,
    before_,
    dends_,
    dmixed_,
    draw_,
    dheads_,
    steps,
    tokens,
    chunks,
    heads,
    raw_stride,
    BEFORE: tl.constexpr,
    AFTER: tl.constexpr,
    SIZE: tl.constexpr,
    STATE: tl.constexpr,
    CHANNELS: tl.constexpr,
    INNER: tl.constexpr,
    P: tl.constexpr,
    N: tl.constexpr,
    L: tl.constexpr,
):
    """Add the gradients that pass through the states around a chunk to those of `_scan_gradients`.

    BEFORE: the state before the chunk may not be zero. AFTER: the state after it has a gradient.
    """
    stream, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    t, p, n = tl.arange(0, L), tl.arange(0, P), tl.arange(0, N)
    first = _first_row(stream, steps, tokens)
    mixed_ += first * CHANNELS
    dmixed_ += first * CHANNELS
    raw_ += first * raw_stride
    draw_ += first * raw_stride
    dy_ += first * INNER
    row = (chunk * L + t) * tokens
    inside = chunk * L + t < steps
    at = row[:, None] * CHANNELS
    real_n = inside[:, None] & (n[None, :] < STATE)
    real_p = inside[:, None] & (p[None, :] < SIZE)
    real = (p[:, None] < SIZE) & (n[None, :] < STATE)
    inner_place = p[:, None] * STATE + n[None, :]
    write = tl.load(mixed_ + at + INNER + n[None, :], mask=real_n, other=0.0)
    read = tl.load(mixed_ + at + INNER + STATE + n[None, :], mask=real_n, other=0.0)
    kind = write.dtype
    dread = tl.zeros((L, N), tl.float32)
    dwrite = tl.zeros((L, N), tl.float32)
    for head in range(0, heads):
        rate, slope = _rates(raw_, bias_, least_, row, head, inside, raw_stride)
        decay = tl.load(decay_ + head).to(tl.float32)
        step = rate * decay
        cum, end = tl.cumsum(step, 0), tl.sum(step, 0)
        there = ((stream * chunks + chunk) * heads + head) * SIZE * STATE
        dcum = tl.zeros((L,), tl.float32)
        dend = tl.zeros((1,), tl.float32)
        through_x = tl.zeros((L,), tl.float32)
        if BEFORE:
            state = tl.load(before_ + there + inner_place, mask=real, other=0.0)
            dy = tl.load(
                dy_ + row[:, None] * INNER + head * SIZE + p[None, :], mask=real_p, other=0.0
            ).to(tl.float32)
            # L N
            to_state = tl.dot((dy * tl.exp(cum)[:, None]).to(kind), state, input_precision="ieee")
            dread += to_state
            dcum += tl.sum(to_state * read.to(tl.float32), 1)
        if AFTER:
            until = tl.exp(end - cum)
            dstate = tl.load(dends_ + there + inner_place, mask=real, other=0.0)
            if BEFORE:
                dend += tl.exp(end) * tl.sum(
                    tl.sum(dstate.to(tl.float32) * state.to(tl.float32), 1), 0
                )
            x = tl.load(mixed_ + at + head * SIZE + p[None, :], mask=real_p, other=0.0).to(
                tl.float32
            )
            dwrite += tl.dot((x * (rate * until)[:, None]).to(kind), dstate, input_precision="ieee")
            du = tl.dot(write, tl.trans(dstate), input_precision="ieee") * until[:, None]  # L P
            through_x += tl.sum(du * x, 1)
            leaving = through_x * rate
            dcum -= leaving
            dend += tl.sum(leaving, 0)
            place = dmixed_ + at + head * SIZE + p[None, :]
            dx = tl.load(place, mask=real_p, other=0.0).to(tl.float32)
            tl.store(place, dx + du * rate[:, None], mask=real_p)
        dstep = tl.where(inside, tl.cumsum(dcum, 0, reverse=True) + dend, 0.0)
        drate = dstep * decay + through_x
        draw = drate * slope
        place = draw_ + row * raw_stride + head
        tl.store(place, tl.load(place, mask=inside, other=0.0).to(tl.float32) + draw, mask=inside)
        here = dheads_ + ((stream * chunks + chunk) * heads + head) * 4
        tl.store(here, tl.load(here) + tl.sum(dstep * rate, 0))
        tl.store(here + 2, tl.load(here + 2) + tl.sum(tl.where(inside, draw, 0.0), 0))
        tl.store(
            here + 3, tl.load(here + 3) + tl.sum(tl.where(inside & (slope == 0), drate, 0.0), 0)
        )
    if AFTER:
        place = dmixed_ + at + INNER + n[None, :]
        tl.store(place, tl.load(place, mask=real_n, other=0.0).to(tl.float32) + dwrite, mask=real_n)
    if BEFORE:
        place = dmixed_ + at + INNER + STATE + n[None, :]
        tl.store(place, tl.load(place, mask=real_n, other=0.0).to(tl.float32) + dread, mask=real_n)
