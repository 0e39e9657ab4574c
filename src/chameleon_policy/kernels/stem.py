"""The encoder's first layers, on the most pixels: convolution, GroupNorm, ReLU, max pooling.

A convolution over 3 channels leaves matrix units idle. `space_to_depth` therefore turns camera
images (uint8, rows of pixels) into cells of 4 x 4 pixels with 48 channels, in [-1, 1]. The 7 x 7
convolution of stride 2 turns a cell into 2 x 2 pixels, which stay together: it is a 3 x 3
convolution over cells, with four times the output channels, and zeros where the 7 x 7 kernel does
not reach. `norm_pool` is GroupNorm, ReLU and 3 x 3 max pooling of stride 2 of these cells. Each
cell becomes one pooled pixel, and the full image is never stored.

| symbol | shape   | meaning                                                             |
|--------|---------|---------------------------------------------------------------------|
| x      | F Q 4 C | input of the norm, Q = h/2 w/2 cells of 2 x 2 of the h w pixels     |
| y      | F Q C   | output                                                              |
| chosen | F Q C   | index of the largest of the nine pixels; CLOSED if none is above 0  |
| peak   | F Q C   | x of that pixel                                                     |
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from chameleon_policy.kernels.group_norm import (
    channel_scales,
    parts_of,
    per_channel,
    store_channel_sums,
)
from chameleon_policy.kernels.sums import sum_rows

CELL = 4
"""Rows and columns of pixels in a cell."""
CELL_CHANNELS = 48
CLOSED = tl.constexpr(9)
POOLING = {"TILE": 16, "TILES": 4, "num_warps": 2}
POOLING_SUMS = {"TILE": 32, "num_warps": 2}
POOLING_BACK = {"TILE": 16, "TILES": 1, "num_warps": 4}
"""Cells of a tile, tiles of a program, and warps; measured on an H200."""
MANY_IMAGES = 64
"""With fewer images, every tile has a program of its own."""
ROWS = 64
"""Rows of a tile in `_cell_sums`."""


@triton.jit
def _space_to_depth(
    images_,
    top_,
    left_,
    cells_,
    steps,
    image_height,
    image_width,
    height,
    width,
    rows,
    columns,
    scale,
    shift,
    CHANNELS: tl.constexpr,
    NUMBERS: tl.constexpr,
):
    """Convert one row of cells of one image.

    A cell of zeros comes before the first and after the last. A cell has 12 numbers of each of its
    four rows of pixels, the next cell the next 12.
    """
    frame, row = tl.program_id(0).to(tl.int64), tl.program_id(1)
    top, left = tl.load(top_ + frame // steps), tl.load(left_ + frame // steps)
    line = tl.arange(0, 4)
    y = (row - 1) * 4 + line
    images_ += frame * image_height * image_width * 3
    cells_ += (frame * rows + row) * columns * CHANNELS
    for first in range(0, columns * 12, NUMBERS):
        place = first + tl.arange(0, NUMBERS)
        x = place // 3 - 4
        inside = (
            (y[:, None] >= 0) & (y[:, None] < height) & (x[None, :] >= 0) & (x[None, :] < width)
        )
        source = ((top + y[:, None]) * image_width + left - 4) * 3 + place[None, :]
        value = tl.load(images_ + source, mask=inside, other=0).to(tl.float32) * scale + shift
        target = (place // 12 * CHANNELS + place % 12)[None, :] + line[:, None] * 12
        tl.store(
            cells_ + target,
            tl.where(inside, value, 0.0),
            mask=(place[None, :] < columns * 12) & (line[:, None] >= 0),
        )


def space_to_depth(
    images: Tensor, top: Tensor, left: Tensor, size: tuple[int, int], kind: torch.dtype
) -> Tensor:
    """Cut `size` at each episode's corner out of (B T H W 3), uint8 or float in [0, 1].

    Returns cells (B*T 48 h/4+2 w/4+2) in [-1, 1], channels last.
    """
    images = images.contiguous()
    episodes, steps, image_height, image_width, _ = images.shape
    (height, width), frames = size, episodes * steps
    rows, columns = triton.cdiv(height, CELL) + 2, triton.cdiv(width, CELL) + 2
    cells = torch.empty(frames, rows, columns, CELL_CHANNELS, dtype=kind, device=images.device)
    scale = 2 / 255 if images.dtype == torch.uint8 else 2.0
    _space_to_depth[(frames, rows)](
        images,
        top,
        left,
        cells,
        steps,
        image_height,
        image_width,
        height,
        width,
        rows,
        columns,
        scale,
        -1.0,
        CHANNELS=CELL_CHANNELS,
        NUMBERS=512,
        num_warps=4,
    )
    return cells.permute(0, 3, 1, 2)


def depth_weight(weight: Tensor) -> Tensor:
    """Rearrange the 7 x 7 kernel (C 3 7 7) of stride 2 as a 3 x 3 kernel over cells (4C 48 3 3).

    Each of a cell's four pixels has a copy of its own, shifted among zeros.
    """
    places = [(down, right) for down in (0, 2) for right in (0, 2)]
    kernels = torch.stack(
        [F.pad(weight, (1 + right, 4 - right, 1 + down, 4 - down)) for down, right in places]
    )  # 4 C 3 12 12
    by_cell = kernels.unflatten(4, (3, CELL)).unflatten(3, (3, CELL))  # 4 C 3 3 4 3 4
    # 4C (row column colour) 3 3
    return by_cell.permute(0, 1, 4, 6, 2, 3, 5).flatten(2, 4).flatten(0, 1)


@triton.jit
def _cell_sums(
    x_,
    sums_,
    height,
    width,
    out_width,
    pixels,
    parts,
    part_rows,
    CHANNELS: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Sum every channel and its square over one part of an image's pixels.

    Pixels outside the image do not count.
    """
    image, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    rows, channel = tl.arange(0, ROWS), tl.arange(0, CHANNELS)
    total = tl.zeros((ROWS, CHANNELS), tl.float32)
    squares = tl.zeros((ROWS, CHANNELS), tl.float32)
    x_ += image * pixels * CHANNELS
    last = tl.minimum((part + 1) * part_rows, pixels)
    for first in range(part * part_rows, last, ROWS):
        row = first + rows
        cell = row // 4
        inside = (
            (2 * (cell // out_width) + row // 2 % 2 < height)
            & (2 * (cell % out_width) + row % 2 < width)
            & (row < last)
        )
        x = tl.load(
            x_ + row[:, None] * CHANNELS + channel[None, :], mask=inside[:, None], other=0.0
        ).to(tl.float32)
        total += x
        squares += x * x
    store_channel_sums(sums_, image * parts + part, channel, total, squares, CHANNELS)


@triton.jit
def _pool(
    x_,
    scales_,
    y_,
    chosen_,
    peak_,
    height,
    width,
    out_height,
    out_width,
    KEEP: tl.constexpr,
    CHANNELS: tl.constexpr,
    TILE: tl.constexpr,
    TILES: tl.constexpr,
):
    image, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    channel = tl.arange(0, CHANNELS)
    scale = tl.load(scales_ + image * 2 * CHANNELS + channel)
    shift = tl.load(scales_ + (image * 2 + 1) * CHANNELS + channel)
    # The norm keeps or reverses the order of a channel's pixels, so the largest is known before it.
    sign = tl.where(scale < 0, -1.0, 1.0)
    outputs = out_height * out_width
    x_ += image * outputs * 4 * CHANNELS
    y_ += image * outputs * CHANNELS
    chosen_ += image * outputs * CHANNELS
    peak_ += image * outputs * CHANNELS
    for tile in range(0, TILES):
        cell = (block * TILES + tile) * TILE + tl.arange(0, TILE)
        i, j = cell // out_width, cell % out_width
        best = tl.full((TILE, CHANNELS), -1e30, tl.float32)
        chosen = tl.full((TILE, CHANNELS), CLOSED, tl.int32)
        for number in tl.static_range(0, 9):
            # Rows 2i - 1 to 2i + 1: the last of the cell above, and both of this one.
            up, back = number // 3 == 0, number % 3 == 0
            inside = (
                (cell < outputs)
                & (2 * i - 1 + number // 3 < height)
                & (2 * j - 1 + number % 3 < width)
            )
            inside = inside & (i >= (1 if up else 0)) & (j >= (1 if back else 0))
            pixel = (cell - (out_width if up else 0) - (1 if back else 0)) * 4
            pixel += (1 if number // 3 != 1 else 0) * 2 + (1 if number % 3 != 1 else 0)
            x = tl.load(
                x_ + pixel[:, None] * CHANNELS + channel[None, :], mask=inside[:, None], other=0.0
            ).to(tl.float32)
            value = tl.where(inside[:, None], x * sign[None, :], -1e30)
            better = value > best
            best = tl.where(better, value, best)
            chosen = tl.where(better, number, chosen)
        place = cell[:, None] * CHANNELS + channel[None, :]
        there = cell[:, None] < outputs
        peak = best * sign[None, :]
        value = peak * scale[None, :] + shift[None, :]
        # keeps NaN
        tl.store(y_ + place, tl.where(value < 0, 0.0, value), mask=there)
        if KEEP:
            tl.store(chosen_ + place, tl.where(value > 0, chosen, CLOSED), mask=there)
            tl.store(peak_ + place, peak, mask=there)


@triton.jit
def _pool_sums(
    dy_,
    chosen_,
    peak_,
    weight_,
    mean_,
    rstd_,
    dparameters_,
    along_,
    outputs,
    pixels,
    GROUPS: tl.constexpr,
    SIZE: tl.constexpr,
    TILE: tl.constexpr,
):
    """Compute gradients of weight and bias of one image, and the sums that its x gradients share.

    Only the chosen pixels contribute.
    """
    image = tl.program_id(0).to(tl.int64)
    channels: tl.constexpr = GROUPS * SIZE
    channel = tl.arange(0, channels)
    group = image * GROUPS + tl.arange(0, GROUPS)
    mean = per_channel(tl.load(mean_ + group), GROUPS, SIZE)
    rstd = per_channel(tl.load(rstd_ + group), GROUPS, SIZE)
    dweight = tl.zeros((TILE, channels), tl.float32)
    dbias = tl.zeros((TILE, channels), tl.float32)
    dy_ += image * outputs * channels
    chosen_ += image * outputs * channels
    peak_ += image * outputs * channels
    for first in range(0, outputs, TILE):
        cell = first + tl.arange(0, TILE)
        there = (cell[:, None] < outputs) & (channel[None, :] < channels)
        place = cell[:, None] * channels + channel[None, :]
        open = tl.load(chosen_ + place, mask=there, other=9) < CLOSED
        dy = tl.where(open, tl.load(dy_ + place, mask=there, other=0.0).to(tl.float32), 0.0)
        xhat = (
            tl.load(peak_ + place, mask=there, other=0.0).to(tl.float32) - mean[None, :]
        ) * rstd[None, :]
        dbias += dy
        dweight += dy * xhat
    dweight, dbias = tl.sum(dweight, 0), tl.sum(dbias, 0)
    tl.store(dparameters_ + image * 2 * channels + channel, dweight)
    tl.store(dparameters_ + (image * 2 + 1) * channels + channel, dbias)
    weight = tl.load(weight_ + channel).to(tl.float32)
    count = pixels * SIZE
    tl.store(along_ + group * 2, tl.sum(tl.reshape(dbias * weight, (GROUPS, SIZE)), 1) / count)
    tl.store(
        along_ + group * 2 + 1, tl.sum(tl.reshape(dweight * weight, (GROUPS, SIZE)), 1) / count
    )


@triton.jit
def _window(dy_, chosen_, cell, inside, channel, CHANNELS: tl.constexpr):
    """Load the gradient of a pooled pixel, and which of its nine pixels it belongs to."""
    place = cell[:, None] * CHANNELS + channel[None, :]
    chosen = tl.load(chosen_ + place, mask=inside[:, None], other=9).to(tl.int32)
    return tl.load(dy_ + place, mask=inside[:, None], other=0.0).to(tl.float32), chosen


@triton.jit
def _pool_back(
    dy_,
    chosen_,
    x_,
    weight_,
    mean_,
    rstd_,
    along_,
    dx_,
    height,
    width,
    out_height,
    out_width,
    GROUPS: tl.constexpr,
    SIZE: tl.constexpr,
    TILE: tl.constexpr,
    TILES: tl.constexpr,
):
    image, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    channels: tl.constexpr = GROUPS * SIZE
    channel = tl.arange(0, channels)
    group = image * GROUPS + tl.arange(0, GROUPS)
    mean = per_channel(tl.load(mean_ + group), GROUPS, SIZE)
    rstd = per_channel(tl.load(rstd_ + group), GROUPS, SIZE)
    # dx = scale dy - slope x - level, from rstd (weight dy - along_one - xhat along_x)
    slope = per_channel(tl.load(along_ + group * 2 + 1), GROUPS, SIZE) * rstd * rstd
    level = per_channel(tl.load(along_ + group * 2), GROUPS, SIZE) * rstd - slope * mean
    scale = tl.load(weight_ + channel).to(tl.float32) * rstd
    outputs = out_height * out_width
    x_ += image * outputs * 4 * channels
    dx_ += image * outputs * 4 * channels
    dy_ += image * outputs * channels
    chosen_ += image * outputs * channels
    for tile in range(0, TILES):
        cell = (block * TILES + tile) * TILE + tl.arange(0, TILE)
        i, j = cell // out_width, cell % out_width
        here = cell < outputs
        right, down = here & (j + 1 < out_width), here & (i + 1 < out_height)
        # The windows of a cell's pixels: an even row or column lies in one, an odd one in two.
        dy, chosen = _window(dy_, chosen_, cell, here, channel, channels)
        dy_right, chosen_right = _window(dy_, chosen_, cell + 1, right, channel, channels)
        dy_down, chosen_down = _window(dy_, chosen_, cell + out_width, down, channel, channels)
        dy_across, chosen_across = _window(
            dy_, chosen_, cell + out_width + 1, right & down, channel, channels
        )
        for number in tl.static_range(0, 4):
            dz = tl.where(chosen == (1 + number // 2) * 3 + 1 + number % 2, dy, 0.0)
            if number % 2 == 1:
                dz += tl.where(chosen_right == (1 + number // 2) * 3, dy_right, 0.0)
            if number // 2 == 1:
                dz += tl.where(chosen_down == 1 + number % 2, dy_down, 0.0)
            if number == 3:
                dz += tl.where(chosen_across == 0, dy_across, 0.0)
            place = (cell * 4 + number)[:, None] * channels + channel[None, :]
            x = tl.load(x_ + place, mask=here[:, None], other=0.0).to(tl.float32)
            dx = scale[None, :] * dz - slope[None, :] * x - level[None, :]
            inside = (2 * i + number // 2 < height) & (2 * j + number % 2 < width)
            tl.store(dx_ + place, tl.where(inside[:, None], dx, 0.0), mask=here[:, None])


def norm_pool(
    x: Tensor, weight: Tensor, bias: Tensor, groups: int, epsilon: float, size: tuple[int, int]
) -> Tensor:
    """Compute max_pool(relu(group_norm(x))), 3 x 3, stride 2, padding 1, of images in cells.

    `size` is that of the image in pixels: channels-last (F 4C h/2 w/2) to (F C h/2 w/2).
    """
    result: Tensor = NormPool.apply(x, weight, bias, groups, epsilon, size, torch.is_grad_enabled())
    return result


class NormPool(torch.autograd.Function):
    """The autograd function of `norm_pool`; `keep` says whether there will be a backward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        groups: int,
        epsilon: float,
        size: tuple[int, int],
        keep: bool,
    ) -> Tensor:
        x = x.contiguous(memory_format=torch.channels_last)
        images, _, out_height, out_width = x.shape
        (height, width), channels, outputs = size, len(weight), out_height * out_width
        y = x.new_empty(images, out_height, out_width, channels).permute(0, 3, 1, 2)
        chosen, peak = y, y
        if keep:
            chosen, peak = torch.empty_like(y, dtype=torch.uint8), torch.empty_like(y)
        parts, part_rows = parts_of(4 * outputs, channels, images)
        sums = torch.empty(images, parts, 2, channels, device=x.device, dtype=torch.float32)
        _cell_sums[(images, parts)](
            x,
            sums,
            height,
            width,
            out_width,
            4 * outputs,
            parts,
            part_rows,
            CHANNELS=channels,
            ROWS=ROWS,
            num_warps=4,
        )
        scales, mean, rstd = channel_scales(sums, weight, bias, groups, height * width, epsilon)
        tiling = POOLING if images >= MANY_IMAGES else {**POOLING, "TILES": 1}
        _pool[(images, triton.cdiv(outputs, tiling["TILE"] * tiling["TILES"]))](
            x,
            scales,
            y,
            chosen,
            peak,
            height,
            width,
            out_height,
            out_width,
            KEEP=keep,
            CHANNELS=channels,
            **tiling,
        )
        ctx.save_for_backward(x, chosen, peak, weight, mean, rstd)
        ctx.groups, ctx.size = groups, size
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, chosen, peak, weight, mean, rstd = ctx.saved_tensors
        (height, width), (images, channels, out_height, out_width) = ctx.size, dy.shape
        outputs = out_height * out_width
        dy = dy.contiguous(memory_format=torch.channels_last)
        dx = torch.empty_like(x)
        dparameters = torch.empty(images, 2, channels, device=x.device, dtype=torch.float32)
        along = torch.empty(images, ctx.groups, 2, device=x.device, dtype=torch.float32)
        sizes = {"GROUPS": ctx.groups, "SIZE": channels // ctx.groups}
        _pool_sums[(images,)](
            dy,
            chosen,
            peak,
            weight,
            mean,
            rstd,
            dparameters,
            along,
            outputs,
            height * width,
            **sizes,
            **POOLING_SUMS,
        )
        _pool_back[(images, triton.cdiv(outputs, POOLING_BACK["TILE"] * POOLING_BACK["TILES"]))](
            dy,
            chosen,
            x,
            weight,
            mean,
            rstd,
            along,
            dx,
            height,
            width,
            out_height,
            out_width,
            **sizes,
            **POOLING_BACK,
        )
        dweight, dbias = sum_rows(dparameters).to(weight.dtype)
        return dx, dweight, dbias, None, None, None, None
