"""The first layers of the patch encoder, which see the most pixels: 7 x 7 convolution, GroupNorm, ReLU, max pooling.

`space_to_depth` turns pictures as cameras give them (uint8, rows of pixels) into blocks of 2 x 2 pixels with 16 channels, in
[-1, 1]: the 7 x 7 convolution of stride 2 over 3 channels becomes a 4 x 4 convolution of stride 1, and four blocks side by
side are one run of memory that matrix units take well. Between the convolution's output and the pooled picture nothing is
written; on the way back the gradient of the convolution's output goes straight into that of its kernel.

| symbol | shape  | meaning                                                               |
|--------|--------|-----------------------------------------------------------------------|
| blocks | F . 16 | input, blocks of 2 x 2 pixels                                         |
| kernel | 256 C  | of the convolution: 4 x 4 blocks of 16 channels                       |
| x      | F P C  | output of the convolution, P = h w pixels                             |
| y      | F Q C  | output, Q = ceil(h / 2) ceil(w / 2) pixels                            |
| chosen | F Q C  | which of the nine pixels is the largest; CLOSED where none is above 0 |
| peak   | F Q C  | x of that pixel                                                       |
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from chameleon_policy.kernels.group_norm import PROGRAMS_TO_FILL_A_GPU, channel_scales, per_channel

BLOCK_CHANNELS = tl.constexpr(16)
"""2 x 2 pixels of 3 colours, and four that stay zero: memory access wants a power of two."""
TAPS = tl.constexpr(4)
"""Blocks that the kernel spans in each direction."""
CLOSED = tl.constexpr(9)
CONVOLUTION = {"TILE": 128, "num_warps": 8, "num_stages": 2}
POOLING = {"TILE": 16, "num_warps": 2}
SUMS = {"TILE": 32, "num_warps": 2}
BACK = {"TILE": 32, "num_warps": 8}
"""Pixels of a tile, and warps."""
TILES = 4
"""Of a program, where there are many pictures."""
MOST_PARTS = 64
"""Programs that share a picture's convolution; whoever adds up their sums holds them all at once."""


@triton.jit
def _space_to_depth(images_, top_, left_, blocks_, steps, image_height, image_width, height, width, rows, columns,
                    scale, shift, BLOCKS: tl.constexpr):  # fmt: skip
    """One row of blocks of one picture; two blocks of zeros before the first, one behind the last."""
    frame, row = tl.program_id(0).to(tl.int64), tl.program_id(1)
    top, left = tl.load(top_ + frame // steps), tl.load(left_ + frame // steps)
    channel = tl.arange(0, 16)
    y = (row - 2) * 2 + channel // 6
    for first in range(0, columns, BLOCKS):
        column = first + tl.arange(0, BLOCKS)
        x = (column[:, None] - 2) * 2 + (channel[None, :] // 3) % 2
        inside = (y[None, :] >= 0) & (y[None, :] < height) & (x >= 0) & (x < width) & (channel[None, :] < 12)
        place = ((frame * image_height + top + y[None, :]) * image_width + left + x) * 3 + channel[None, :] % 3
        value = tl.load(images_ + place, mask=inside, other=0).to(tl.float32) * scale + shift
        value = tl.where(inside, value, 0.0)
        there = ((frame * rows + row) * columns + column[:, None]) * 16 + channel[None, :]
        tl.store(blocks_ + there, value, mask=column[:, None] < columns)


def space_to_depth(images: Tensor, top: Tensor, left: Tensor, size: tuple[int, int], kind: torch.dtype) -> Tensor:
    """Cut `size` at each episode's corner out of (B T H W 3), uint8 or float in [0, 1]: blocks (B*T 16 h/2+3 w/2+3) in
    [-1, 1], channels last."""
    images = images.contiguous()
    episodes, steps, image_height, image_width, _ = images.shape
    (height, width), frames = size, episodes * steps
    rows, columns = triton.cdiv(height, 2) + 3, triton.cdiv(width, 2) + 3
    blocks = torch.empty(frames, rows, columns, BLOCK_CHANNELS.value, dtype=kind, device=images.device)
    scale = 2 / 255 if images.dtype == torch.uint8 else 2.0
    _space_to_depth[(frames, rows)](
        images, top, left, blocks, steps, image_height, image_width, height, width, rows, columns, scale, -1.0,
        BLOCKS=64, num_warps=4,
    )  # fmt: skip
    return blocks.permute(0, 3, 1, 2)


def depth_weight(weight: Tensor) -> Tensor:
    """The 7 x 7 kernel (C 3 7 7) of stride 2 as one of 4 x 4 blocks, a matrix (256 C)."""
    padded = F.pad(weight, (1, 0, 1, 0))  # a block begins one pixel before the first tap
    by_block = padded.unflatten(3, (TAPS.value, 2)).unflatten(2, (TAPS.value, 2))  # C 3 4 2 4 2
    by_channel = by_block.permute(2, 4, 3, 5, 1, 0).flatten(2, 4)  # 4 4 (row column colour) C
    return F.pad(by_channel, (0, 0, 0, BLOCK_CHANNELS.value - 12)).flatten(0, 2)


@triton.jit
def _under_the_kernel(blocks_, y, x, columns, inside, FIRST: tl.constexpr, COUNT: tl.constexpr):
    """What some rows of the kernel see from every pixel (TILE 64 COUNT): the blocks of a row lie side by side."""
    row: tl.constexpr = TAPS * BLOCK_CHANNELS
    tap = tl.arange(0, COUNT * row)
    corner = ((y + FIRST) * columns + x) * BLOCK_CHANNELS
    place = corner[:, None] + (tap // row)[None, :] * columns * BLOCK_CHANNELS + (tap % row)[None, :]
    return tl.load(blocks_ + place, mask=inside[:, None], other=0.0)


@triton.jit
def _convolve(blocks_, kernel_, x_, sums_, rows, columns, height, width, parts, tiles,
              CHANNELS: tl.constexpr, TILE: tl.constexpr, PRECISION: tl.constexpr):  # fmt: skip
    """The convolution of one part of a picture, and sum and sum of squares of every channel over it."""
    picture, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row: tl.constexpr = TAPS * BLOCK_CHANNELS
    channel = tl.arange(0, CHANNELS)
    kernel_ += tl.arange(0, row)[:, None] * CHANNELS + channel[None, :]
    blocks_ += picture * rows * columns * BLOCK_CHANNELS
    x_ += picture * height * width * CHANNELS
    total = tl.zeros((TILE, CHANNELS), tl.float32)
    squares = tl.zeros((TILE, CHANNELS), tl.float32)
    for tile in range(part * tiles, (part + 1) * tiles):
        pixel = tile * TILE + tl.arange(0, TILE)
        inside = pixel < height * width
        x = tl.zeros((TILE, CHANNELS), tl.float32)
        for line in tl.static_range(0, TAPS):
            seen = _under_the_kernel(blocks_, pixel // width, pixel % width, columns, inside, line, 1)
            x = tl.dot(seen, tl.load(kernel_ + line * row * CHANNELS), x, input_precision=PRECISION)
        rounded = x.to(x_.dtype.element_ty)
        tl.store(x_ + pixel[:, None] * CHANNELS + channel[None, :], rounded, mask=inside[:, None])
        total += rounded.to(tl.float32)
        squares += rounded.to(tl.float32) * rounded.to(tl.float32)
    here = sums_ + (picture * parts + part) * 2 * CHANNELS + channel
    tl.store(here, tl.sum(total, 0))
    tl.store(here + CHANNELS, tl.sum(squares, 0))


@triton.jit
def _pool(x_, scales_, y_, chosen_, peak_, height, width, out_height, out_width,
          KEEP: tl.constexpr, CHANNELS: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr):  # fmt: skip
    picture, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    channels: tl.constexpr = CHANNELS
    channel = tl.arange(0, channels)
    scale = tl.load(scales_ + picture * 2 * channels + channel)
    shift = tl.load(scales_ + (picture * 2 + 1) * channels + channel)
    # The norm keeps or turns the order of a channel's pixels, so the largest can be chosen before it.
    sign = tl.where(scale < 0, -1.0, 1.0)
    outputs = out_height * out_width
    x_ += picture * height * width * channels
    y_ += picture * outputs * channels
    chosen_ += picture * outputs * channels
    peak_ += picture * outputs * channels
    for tile in range(0, TILES):
        pixel = (block * TILES + tile) * TILE + tl.arange(0, TILE)
        oy, ox = pixel // out_width, pixel % out_width
        best = tl.full((TILE, channels), -1e30, tl.float32)
        chosen = tl.full((TILE, channels), CLOSED, tl.int32)
        for number in tl.static_range(0, 9):
            iy, ix = 2 * oy - 1 + number // 3, 2 * ox - 1 + number % 3
            inside = (pixel < outputs) & (iy >= 0) & (iy < height) & (ix >= 0) & (ix < width)
            place = (iy[:, None] * width + ix[:, None]) * channels + channel[None, :]
            x = tl.load(x_ + place, mask=inside[:, None], other=0.0).to(tl.float32)
            value = tl.where(inside[:, None], x * sign[None, :], -1e30)
            better = value > best
            best = tl.where(better, value, best)
            chosen = tl.where(better, number, chosen)
        place = pixel[:, None] * channels + channel[None, :]
        there = pixel[:, None] < outputs
        peak = best * sign[None, :]
        value = peak * scale[None, :] + shift[None, :]
        tl.store(y_ + place, tl.where(value < 0, 0.0, value), mask=there)  # so that what is no number stays none
        if KEEP:
            tl.store(chosen_ + place, tl.where(value > 0, chosen, CLOSED), mask=there)
            tl.store(peak_ + place, peak, mask=there)


@triton.jit
def _pool_sums(dy_, chosen_, peak_, weight_, mean_, rstd_, dparameters_, along_, outputs, pixels,
               GROUPS: tl.constexpr, SIZE: tl.constexpr, TILE: tl.constexpr):  # fmt: skip
    """Gradients of weight and bias of one picture, and what its x gradients share: only chosen pixels take part."""
    picture = tl.program_id(0).to(tl.int64)
    channels: tl.constexpr = GROUPS * SIZE
    channel = tl.arange(0, channels)
    group = picture * GROUPS + tl.arange(0, GROUPS)
    mean = per_channel(tl.load(mean_ + group), GROUPS, SIZE)
    rstd = per_channel(tl.load(rstd_ + group), GROUPS, SIZE)
    dweight = tl.zeros((TILE, channels), tl.float32)
    dbias = tl.zeros((TILE, channels), tl.float32)
    dy_ += picture * outputs * channels
    chosen_ += picture * outputs * channels
    peak_ += picture * outputs * channels
    for first in range(0, outputs, TILE):
        pixel = first + tl.arange(0, TILE)
        there = (pixel[:, None] < outputs) & (channel[None, :] < channels)
        place = pixel[:, None] * channels + channel[None, :]
        open = tl.load(chosen_ + place, mask=there, other=9) < CLOSED
        dy = tl.where(open, tl.load(dy_ + place, mask=there, other=0.0).to(tl.float32), 0.0)
        xhat = (tl.load(peak_ + place, mask=there, other=0.0).to(tl.float32) - mean[None, :]) * rstd[None, :]
        dbias += dy
        dweight += dy * xhat
    dweight, dbias = tl.sum(dweight, 0), tl.sum(dbias, 0)
    tl.store(dparameters_ + picture * 2 * channels + channel, dweight)
    tl.store(dparameters_ + (picture * 2 + 1) * channels + channel, dbias)
    weight = tl.load(weight_ + channel).to(tl.float32)
    count = pixels * SIZE
    tl.store(along_ + group * 2, tl.sum(tl.reshape(dbias * weight, (GROUPS, SIZE)), 1) / count)
    tl.store(along_ + group * 2 + 1, tl.sum(tl.reshape(dweight * weight, (GROUPS, SIZE)), 1) / count)


@triton.jit
def _from_window(dy_, chosen_, i, j, code, there, out_height, out_width, channel, CHANNELS: tl.constexpr):
    """Gradient of a pooled pixel where it belongs to the one of its nine pixels that `code` names."""
    here = there & (i < out_height) & (j < out_width)
    place = (i * out_width + j)[:, None] * CHANNELS + channel[None, :]
    mine = tl.load(chosen_ + place, mask=here[:, None], other=9).to(tl.int32) == code
    return tl.where(mine, tl.load(dy_ + place, mask=here[:, None], other=0.0).to(tl.float32), 0.0)


@triton.jit
def _backward(dy_, chosen_, x_, blocks_, weight_, mean_, rstd_, along_, dkernel_, pictures, rows, columns,
              height, width, out_height, out_width,
              GROUPS: tl.constexpr, SIZE: tl.constexpr, TILE: tl.constexpr, PRECISION: tl.constexpr):  # fmt: skip
    """Gradient of the convolution's kernel over some of the pictures."""
    program, programs = tl.program_id(0), tl.num_programs(0)
    channels: tl.constexpr = GROUPS * SIZE
    taps: tl.constexpr = TAPS * TAPS * BLOCK_CHANNELS
    channel, tap = tl.arange(0, channels), tl.arange(0, taps)
    weight = tl.load(weight_ + channel).to(tl.float32)
    outputs = out_height * out_width
    dkernel = tl.zeros((taps, channels), tl.float32)
    for number in range(program, pictures, programs):
        picture = tl.cast(number, tl.int64)
        group = picture * GROUPS + tl.arange(0, GROUPS)
        mean = per_channel(tl.load(mean_ + group), GROUPS, SIZE)
        rstd = per_channel(tl.load(rstd_ + group), GROUPS, SIZE)
        along_one = per_channel(tl.load(along_ + group * 2), GROUPS, SIZE)
        along_x = per_channel(tl.load(along_ + group * 2 + 1), GROUPS, SIZE) * rstd
        dy_here, chosen_here = dy_ + picture * outputs * channels, chosen_ + picture * outputs * channels
        x_here = x_ + picture * height * width * channels
        blocks_here = blocks_ + picture * rows * columns * BLOCK_CHANNELS
        for step in range(0, 4 * tl.cdiv(outputs, TILE)):
            # Pixels of one kind at a time: an even row or column lies in one window of the pooling, an odd one in two.
            pixel = step // 4 * TILE + tl.arange(0, TILE)
            down, right = (step // 2) % 2, step % 2
            i, j = pixel // out_width, pixel % out_width
            y, x = 2 * i + down, 2 * j + right
            inside = (pixel < outputs) & (y < height) & (x < width)
            code = 3 * down + right + 4
            place = (y * width + x)[:, None] * channels + channel[None, :]
            value = tl.load(x_here + place, mask=inside[:, None], other=0.0).to(tl.float32)
            dy = _from_window(dy_here, chosen_here, i, j, code, inside, out_height, out_width, channel, channels)
            dy += _from_window(
                dy_here, chosen_here, i, j + 1, code - 2, inside & (right > 0), out_height, out_width, channel, channels
            )
            dy += _from_window(
                dy_here, chosen_here, i + 1, j, code - 6, inside & (down > 0), out_height, out_width, channel, channels
            )
            both = inside & (down * right > 0)
            dy += _from_window(dy_here, chosen_here, i + 1, j + 1, 0, both, out_height, out_width, channel, channels)
            dx = rstd[None, :] * (weight[None, :] * dy - along_one[None, :] - (value - mean[None, :]) * along_x[None, :])
            seen = _under_the_kernel(blocks_here, y, x, columns, inside, 0, TAPS)  # zero where outside
            dkernel = tl.dot(tl.trans(seen), dx.to(seen.dtype), dkernel, input_precision=PRECISION)
    tl.store(dkernel_ + program * taps * channels + tap[:, None] * channels + channel[None, :], dkernel)


def stem(
    blocks: Tensor, kernel: Tensor, weight: Tensor, bias: Tensor, groups: int, epsilon: float, size: tuple[int, int]
) -> Tensor:
    """max_pool(relu(group_norm(convolution))) of a picture of `size`, as `space_to_depth` and `depth_weight` give blocks
    and kernel: (F C h/4 w/4) in channels-last memory."""
    result: Tensor = Stem.apply(blocks, kernel, weight, bias, groups, epsilon, size, torch.is_grad_enabled())
    return result


def _precision(kind: torch.dtype) -> str:
    """Of matrix products: float32 is for tests and not to be rounded."""
    return "ieee" if kind == torch.float32 else "tf32"


class Stem(torch.autograd.Function):
    """`stem`; `keep` says whether there will be a way back."""

    @staticmethod
    def forward(
        ctx: Any, blocks: Tensor, kernel: Tensor, weight: Tensor, bias: Tensor, groups: int, epsilon: float,
        size: tuple[int, int], keep: bool,
    ) -> Tensor:  # fmt: skip
        (pictures, _, rows, columns), channels = blocks.shape, kernel.shape[1]
        height, width = (triton.cdiv(side, 2) for side in size)
        out_height, out_width = triton.cdiv(height, 2), triton.cdiv(width, 2)
        like = {"dtype": blocks.dtype, "device": blocks.device, "memory_format": torch.channels_last}
        x = torch.empty(pictures, channels, height, width, **like)
        y = torch.empty(pictures, channels, out_height, out_width, **like)
        chosen, peak = (torch.empty_like(y, dtype=torch.uint8), torch.empty_like(y)) if keep else (y, y)

        tiles = triton.cdiv(height * width, CONVOLUTION["TILE"])
        each = triton.cdiv(tiles, min(tiles, MOST_PARTS, max(tiles // TILES, PROGRAMS_TO_FILL_A_GPU // pictures, 1)))
        parts = triton.cdiv(tiles, each)
        sums = torch.empty(pictures, parts, 2, channels, device=blocks.device, dtype=torch.float32)
        _convolve[(pictures, parts)](
            blocks, kernel.to(blocks.dtype), x, sums, rows, columns, height, width, parts, each,
            CHANNELS=channels, PRECISION=_precision(blocks.dtype), **CONVOLUTION,
        )  # fmt: skip
        scales, mean, rstd = channel_scales(sums, weight, bias, groups, height * width, epsilon)
        tiles, each = triton.cdiv(out_height * out_width, POOLING["TILE"]), 1 if pictures < 64 else TILES
        _pool[(pictures, triton.cdiv(tiles, each))](
            x, scales, y, chosen, peak, height, width, out_height, out_width,
            KEEP=keep, CHANNELS=channels, TILES=each, **POOLING,
        )  # fmt: skip
        ctx.save_for_backward(blocks, x, chosen, peak, weight, mean, rstd)
        ctx.groups, ctx.kinds = groups, (kernel.dtype, weight.dtype)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        blocks, x, chosen, peak, weight, mean, rstd = ctx.saved_tensors
        (pictures, channels, height, width), (rows, columns) = x.shape, blocks.shape[2:]
        out_height, out_width = dy.shape[2:]
        dy = dy.contiguous(memory_format=torch.channels_last)
        programs = min(pictures, PROGRAMS_TO_FILL_A_GPU)
        floats = {"device": x.device, "dtype": torch.float32}
        dparameters = torch.empty(pictures, 2, channels, **floats)
        along = torch.empty(pictures, ctx.groups, 2, **floats)
        dkernel = torch.empty(programs, BLOCK_CHANNELS.value * TAPS.value**2, channels, **floats)
        sizes = {"GROUPS": ctx.groups, "SIZE": channels // ctx.groups}
        _pool_sums[(pictures,)](
            dy, chosen, peak, weight, mean, rstd, dparameters, along, out_height * out_width, height * width,
            **sizes, **SUMS,
        )  # fmt: skip
        _backward[(programs,)](
            dy, chosen, x, blocks, weight, mean, rstd, along, dkernel, pictures, rows, columns,
            height, width, out_height, out_width, **sizes, PRECISION=_precision(x.dtype), **BACK,
        )  # fmt: skip
        dweight, dbias = dparameters.sum(0).to(ctx.kinds[1])
        return None, dkernel.sum(0).to(ctx.kinds[0]), dweight, dbias, None, None, None, None
