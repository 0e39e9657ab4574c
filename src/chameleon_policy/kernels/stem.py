"""The first layers of the patch encoder, which see the most pixels.

`space_to_depth` turns pictures as cameras give them (uint8, rows of pixels) into blocks of 2 x 2 pixels with 16 channels, in
[-1, 1]: the 7 x 7 convolution of stride 2 over 3 channels becomes a 4 x 4 convolution of stride 1 that matrix units take
well. `NormPool` is GroupNorm, ReLU and 3 x 3 max pooling of stride 2 without the picture in between.

| symbol | shape      | meaning                                                               |
|--------|------------|-----------------------------------------------------------------------|
| x      | F P C      | input of the norm, P = h w pixels                                     |
| y      | F Q C      | output, Q = ceil(h / 2) ceil(w / 2) pixels                            |
| chosen | F Q C      | which of the nine pixels is the largest; CLOSED where none is above 0 |
| peak   | F Q C      | x of that pixel                                                       |
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from chameleon_policy.kernels.group_norm import Scales, per_channel

BLOCK_CHANNELS = 16
"""2 x 2 pixels of 3 colours, and four that stay zero: memory access wants a power of two."""
CLOSED = tl.constexpr(9)
PIXELS = 16
"""Of a tile."""
TILES = 4
"""Of a program, where there are many pictures."""
WARPS = 2


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
    blocks = torch.empty(frames, rows, columns, BLOCK_CHANNELS, dtype=kind, device=images.device)
    scale = 2 / 255 if images.dtype == torch.uint8 else 2.0
    _space_to_depth[(frames, rows)](
        images, top, left, blocks, steps, image_height, image_width, height, width, rows, columns, scale, -1.0,
        BLOCKS=64, num_warps=4,
    )  # fmt: skip
    return blocks.permute(0, 3, 1, 2)


def depth_weight(weight: Tensor) -> Tensor:
    """The 7 x 7 kernel (O 3 7 7) of stride 2 as a 4 x 4 kernel (O 16 4 4) over blocks."""
    padded = F.pad(weight, (1, 0, 1, 0))  # a block begins one pixel before the first tap
    by_block = padded.unflatten(3, (4, 2)).unflatten(2, (4, 2))  # O 3 4 2 4 2
    by_channel = by_block.permute(0, 3, 5, 1, 2, 4).flatten(1, 3)  # O (row column colour) 4 4
    return F.pad(by_channel, (0, 0, 0, 0, 0, BLOCK_CHANNELS - 12))


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
def _pool_back(dy_, chosen_, x_, weight_, mean_, rstd_, along_, dx_, height, width, out_height, out_width,
               GROUPS: tl.constexpr, SIZE: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr):  # fmt: skip
    picture, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    channels: tl.constexpr = GROUPS * SIZE
    channel = tl.arange(0, channels)
    group = picture * GROUPS + tl.arange(0, GROUPS)
    mean = per_channel(tl.load(mean_ + group), GROUPS, SIZE)
    rstd = per_channel(tl.load(rstd_ + group), GROUPS, SIZE)
    along_one = per_channel(tl.load(along_ + group * 2), GROUPS, SIZE)
    along_x = per_channel(tl.load(along_ + group * 2 + 1), GROUPS, SIZE)
    weight = tl.load(weight_ + channel).to(tl.float32)
    x_ += picture * height * width * channels
    dx_ += picture * height * width * channels
    dy_ += picture * out_height * out_width * channels
    chosen_ += picture * out_height * out_width * channels
    for tile in range(0, TILES):
        pixel = (block * TILES + tile) * TILE + tl.arange(0, TILE)
        iy, ix = pixel // width, pixel % width
        there = pixel < height * width
        place = pixel[:, None] * channels + channel[None, :]
        dy = tl.zeros((TILE, channels), tl.float32)
        for number in tl.static_range(0, 4):
            # An even coordinate lies in one window, an odd one in two.
            oy, ox = (iy + number // 2) // 2, (ix + number % 2) // 2
            here = there & (oy < out_height) & (ox < out_width)
            here = here & ((number // 2 == 0) | (iy % 2 == 1)) & ((number % 2 == 0) | (ix % 2 == 1))
            code = (iy - 2 * oy + 1) * 3 + ix - 2 * ox + 1
            source = (oy[:, None] * out_width + ox[:, None]) * channels + channel[None, :]
            mine = tl.load(chosen_ + source, mask=here[:, None], other=9).to(tl.int32) == code[:, None]
            dy += tl.where(mine, tl.load(dy_ + source, mask=here[:, None], other=0.0).to(tl.float32), 0.0)
        x = tl.load(x_ + place, mask=there[:, None], other=0.0).to(tl.float32)
        xhat = (x - mean[None, :]) * rstd[None, :]
        dx = rstd[None, :] * (weight[None, :] * dy - along_one[None, :] - xhat * along_x[None, :])
        tl.store(dx_ + place, dx, mask=there[:, None])


def norm_pool(x: Tensor, weight: Tensor, bias: Tensor, groups: int, epsilon: float) -> Tensor:
    """max_pool(relu(group_norm(x))) of pictures (F C h w) in channels-last memory: 3 x 3, stride 2, padding 1."""
    result: Tensor = NormPool.apply(x, weight, bias, groups, epsilon, torch.is_grad_enabled())
    return result


class NormPool(torch.autograd.Function):
    """`norm_pool`; `keep` says whether there will be a way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, groups: int, epsilon: float, keep: bool) -> Tensor:
        x = x.contiguous(memory_format=torch.channels_last)
        pictures, channels, height, width = x.shape
        out_height, out_width = (height + 1) // 2, (width + 1) // 2
        y = torch.empty(
            pictures, channels, out_height, out_width, dtype=x.dtype, device=x.device, memory_format=torch.channels_last
        )
        chosen, peak = (torch.empty_like(y, dtype=torch.uint8), torch.empty_like(y)) if keep else (y, y)
        scales = Scales(x, weight, bias, groups, epsilon)
        tiles = triton.cdiv(out_height * out_width, PIXELS)
        each = 1 if pictures < 64 else TILES
        _pool[(pictures, triton.cdiv(tiles, each))](
            x, scales.channels, y, chosen, peak, height, width, out_height, out_width,
            KEEP=keep, CHANNELS=channels, TILE=PIXELS, TILES=each, num_warps=WARPS,
        )  # fmt: skip
        mean, rstd = scales.mean, scales.rstd
        ctx.save_for_backward(x, chosen, peak, weight, mean, rstd)
        ctx.groups = groups
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, chosen, peak, weight, mean, rstd = ctx.saved_tensors
        pictures, channels, height, width = x.shape
        out_height, out_width = dy.shape[2:]
        dy = dy.contiguous(memory_format=torch.channels_last)
        dx = torch.empty_like(x)
        dparameters = torch.empty(pictures, 2, channels, device=x.device, dtype=torch.float32)
        along = torch.empty(pictures, ctx.groups, 2, device=x.device, dtype=torch.float32)
        sizes = {"GROUPS": ctx.groups, "SIZE": channels // ctx.groups}
        _pool_sums[(pictures,)](
            dy, chosen, peak, weight, mean, rstd, dparameters, along, out_height * out_width, height * width,
            **sizes, TILE=2 * PIXELS, num_warps=WARPS,
        )  # fmt: skip
        tiles, each = triton.cdiv(height * width, PIXELS), TILES
        _pool_back[(pictures, triton.cdiv(tiles, each))](
            dy, chosen, x, weight, mean, rstd, along, dx, height, width, out_height, out_width,
            **sizes, TILE=PIXELS, TILES=each, num_warps=WARPS,
        )  # fmt: skip
        dweight, dbias = dparameters.sum(0).to(weight.dtype)
        return dx, dweight, dbias, None, None, None
