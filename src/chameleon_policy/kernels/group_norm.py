"""GroupNorm, an optional residual and an optional ReLU in one pass over channels-last images.

| symbol | shape | meaning                                        |
|--------|-------|------------------------------------------------|
| x      | F P C | input, P pixels, channels last                 |
| mean   | F G   | of a group of an image                         |
| rstd   | F G   | 1 / sqrt(variance + epsilon)                   |
| y      | F P C | relu((x - mean) rstd weight + bias + residual) |

A program handles some whole groups of one image. Small images (WHOLE) are read once; others twice,
the second time from a cache. A few large images (a robot's) are split among many programs, which
exchange statistics through memory.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from chameleon_policy.kernels.sums import sum_rows

CHANNELS_TOGETHER = 64
"""Largest number of channels of a program."""
FORWARD = ((0, 128, 64),)
BACKWARD = ((512, 128, 16), (128, 32, 8), (32, 16, 16), (0, 16, 32))
"""(pixels, rows, numbers): for images of at least so many pixels, the largest number of rows of a
program's tile and the numbers per thread; measured on an H200. Images that fit into a tile are read
once.
"""
TILE = 4096
"""Numbers of a tile for few large images."""
PROGRAMS_TO_FILL_A_GPU = 264


@triton.jit
def per_channel(values, GROUPS: tl.constexpr, SIZE: tl.constexpr):
    """Expand one value per group to one per channel."""
    return tl.reshape(tl.broadcast_to(values[:, None], (GROUPS, SIZE)), (GROUPS * SIZE,))


@triton.jit
def scale_and_shift(
    total, squares, weight, bias, count, epsilon, GROUPS: tl.constexpr, SIZE: tl.constexpr
):
    """Compute mean and rstd of the groups, and scale and shift of the channels.

    The inputs are the sums of every channel.
    """
    mean = tl.sum(tl.reshape(total, (GROUPS, SIZE)), 1) / count
    variance = tl.sum(tl.reshape(squares, (GROUPS, SIZE)), 1) / count - mean * mean
    rstd = 1 / tl.sqrt(tl.maximum(variance, 0.0, propagate_nan=tl.PropagateNan.ALL) + epsilon)
    scale = per_channel(rstd, GROUPS, SIZE) * weight
    return mean, rstd, scale, bias - per_channel(mean, GROUPS, SIZE) * scale


@triton.jit
def _finish(
    x, scale, shift, residual_, y_, place, inside, RESIDUAL: tl.constexpr, RELU: tl.constexpr
):
    y = x * scale[None, :] + shift[None, :]
    if RESIDUAL:
        y += tl.load(residual_ + place, mask=inside, other=0.0).to(tl.float32)
    if RELU:
        y = tl.where(y < 0, 0.0, y)  # keeps NaN
    tl.store(y_ + place, y, mask=inside)
    return y


@triton.jit
def _bytes(row, block, pixels, CHANNELS: tl.constexpr, WIDTH: tl.constexpr):
    """Return the offsets of the bytes that hold a program's channels, eight each, and a mask."""
    place = (
        row[:, None] * (CHANNELS // 8) + block * (WIDTH // 8) + tl.arange(0, WIDTH // 8)[None, :]
    )
    return place, (row[:, None] < pixels) & (place >= 0)


@triton.jit
def _keep_open(
    open_, y, row, block, pixels, CHANNELS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr
):
    """Store which numbers passed the ReLU, one bit each, which is less to read than y."""
    bits = tl.reshape((y > 0).to(tl.int32), (ROWS, WIDTH // 8, 8)) << tl.arange(0, 8)[None, None, :]
    place, inside = _bytes(row, block, pixels, CHANNELS, WIDTH)
    tl.store(open_ + place, tl.sum(bits, 2).to(tl.uint8), mask=inside)


@triton.jit
def _was_open(
    open_, row, block, pixels, CHANNELS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr
):
    place, inside = _bytes(row, block, pixels, CHANNELS, WIDTH)
    bits = (
        tl.load(open_ + place, mask=inside, other=0).to(tl.int32)[:, :, None]
        >> tl.arange(0, 8)[None, None, :]
    )
    return tl.reshape(bits & 1, (ROWS, WIDTH)) > 0


@triton.jit
def _group_norm_forward(
    x_,
    residual_,
    weight_,
    bias_,
    y_,
    open_,
    mean_,
    rstd_,
    pixels,
    epsilon,
    WHOLE: tl.constexpr,
    RESIDUAL: tl.constexpr,
    RELU: tl.constexpr,
    KEEP: tl.constexpr,
    CHANNELS: tl.constexpr,
    GROUPS: tl.constexpr,
    SIZE: tl.constexpr,
    ROWS: tl.constexpr,
):
    width: tl.constexpr = GROUPS * SIZE
    image, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    channel = block * width + tl.arange(0, width)
    rows = tl.arange(0, ROWS)
    weight, bias = (
        tl.load(weight_ + channel).to(tl.float32),
        tl.load(bias_ + channel).to(tl.float32),
    )
    group = image * (CHANNELS // SIZE) + block * GROUPS + tl.arange(0, GROUPS)
    count = pixels * SIZE
    # One 64-bit base per image and 32-bit offsets, which halves the registers for addresses.
    x_ += image * pixels * CHANNELS
    y_ += image * pixels * CHANNELS
    residual_ += image * pixels * CHANNELS
    open_ += image * pixels * (CHANNELS // 8)
    if WHOLE:
        place = rows[:, None] * CHANNELS + channel[None, :]
        inside = (rows[:, None] < pixels) & (channel[None, :] < CHANNELS)
        x = tl.load(x_ + place, mask=inside, other=0.0).to(tl.float32)
        mean, rstd, scale, shift = scale_and_shift(
            tl.sum(x, 0), tl.sum(x * x, 0), weight, bias, count, epsilon, GROUPS, SIZE
        )
        y = _finish(x, scale, shift, residual_, y_, place, inside, RESIDUAL, RELU)
        if KEEP:
            _keep_open(open_, y, rows, block, pixels, CHANNELS, width, ROWS)
    else:
        # Every thread keeps its sums over the rows; threads synchronise once, at the end.
        total = tl.zeros((ROWS, width), tl.float32)
        squares = tl.zeros((ROWS, width), tl.float32)
        for first in range(0, pixels, ROWS):
            row = first + rows
            place = row[:, None] * CHANNELS + channel[None, :]
            x = tl.load(x_ + place, mask=row[:, None] < pixels, other=0.0).to(tl.float32)
            total += x
            squares += x * x
        mean, rstd, scale, shift = scale_and_shift(
            tl.sum(total, 0), tl.sum(squares, 0), weight, bias, count, epsilon, GROUPS, SIZE
        )
        for first in range(0, pixels, ROWS):
            row = first + rows
            place = row[:, None] * CHANNELS + channel[None, :]
            inside = (row[:, None] < pixels) & (channel[None, :] < CHANNELS)
            x = tl.load(x_ + place, mask=inside, other=0.0).to(tl.float32)
            y = _finish(x, scale, shift, residual_, y_, place, inside, RESIDUAL, RELU)
            if KEEP:
                _keep_open(open_, y, row, block, pixels, CHANNELS, width, ROWS)
    tl.store(mean_ + group, mean)
    tl.store(rstd_ + group, rstd)


@triton.jit
def _incoming(dy_, second_dy_, place, inside, TWO: tl.constexpr):
    """Load the gradient after the ReLU, from one consumer or two."""
    dy = tl.load(dy_ + place, mask=inside, other=0.0).to(tl.float32)
    if TWO:
        dy += tl.load(second_dy_ + place, mask=inside, other=0.0).to(tl.float32)
    return dy


@triton.jit
def _through_relu(
    dy,
    x,
    scale,
    shift,
    open_,
    row,
    block,
    pixels,
    RESIDUAL: tl.constexpr,
    CHANNELS: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Compute the gradient before the ReLU; without a residual, x tells which numbers passed."""
    if RESIDUAL:
        was_open = _was_open(open_, row, block, pixels, CHANNELS, WIDTH, ROWS)
    else:
        was_open = x * scale[None, :] + shift[None, :] > 0
    return tl.where(was_open, dy, 0.0)


@triton.jit
def _group_norm_backward(
    dy_,
    second_dy_,
    open_,
    x_,
    weight_,
    bias_,
    mean_,
    rstd_,
    dx_,
    dresidual_,
    dparameters_,
    pixels,
    WHOLE: tl.constexpr,
    TWO: tl.constexpr,
    RESIDUAL: tl.constexpr,
    RELU: tl.constexpr,
    CHANNELS: tl.constexpr,
    GROUPS: tl.constexpr,
    SIZE: tl.constexpr,
    ROWS: tl.constexpr,
):
    width: tl.constexpr = GROUPS * SIZE
    # Blocks of one image are neighbours, so that they share cached memory.
    image, block = (
        (tl.program_id(0) // (CHANNELS // width)).to(tl.int64),
        tl.program_id(0) % (CHANNELS // width),
    )
    channel = block * width + tl.arange(0, width)
    rows = tl.arange(0, ROWS)
    group = image * (CHANNELS // SIZE) + block * GROUPS + tl.arange(0, GROUPS)
    mean = per_channel(tl.load(mean_ + group), GROUPS, SIZE)
    rstd = per_channel(tl.load(rstd_ + group), GROUPS, SIZE)
    weight, bias = (
        tl.load(weight_ + channel).to(tl.float32),
        tl.load(bias_ + channel).to(tl.float32),
    )
    scale = rstd * weight
    shift = bias - mean * scale
    count = pixels * SIZE
    here = image * pixels * CHANNELS
    dy_ += here
    second_dy_ += here
    open_ += image * pixels * (CHANNELS // 8)
    x_ += here
    dx_ += here
    dresidual_ += here
    if WHOLE:
        place = rows[:, None] * CHANNELS + channel[None, :]
        inside = (rows[:, None] < pixels) & (channel[None, :] < CHANNELS)
        x = tl.load(x_ + place, mask=inside, other=0.0).to(tl.float32)
        dy = _incoming(dy_, second_dy_, place, inside, TWO)
        if RELU:
            dy = _through_relu(
                dy, x, scale, shift, open_, rows, block, pixels, RESIDUAL, CHANNELS, width, ROWS
            )
        xhat = (x - mean[None, :]) * rstd[None, :]
        dbias, dweight = tl.sum(dy, 0), tl.sum(dy * xhat, 0)
    else:
        dbiases = tl.zeros((ROWS, width), tl.float32)
        dweights = tl.zeros((ROWS, width), tl.float32)
        for first in range(0, pixels, ROWS):
            row = first + rows
            place = row[:, None] * CHANNELS + channel[None, :]
            inside = (row[:, None] < pixels) & (channel[None, :] < CHANNELS)
            x = tl.load(x_ + place, mask=inside, other=0.0).to(tl.float32)
            dy = _incoming(dy_, second_dy_, place, inside, TWO)
            if RELU:
                dy = _through_relu(
                    dy, x, scale, shift, open_, row, block, pixels, RESIDUAL, CHANNELS, width, ROWS
                )
            if RESIDUAL:
                dy = dy.to(dresidual_.dtype.element_ty)
                tl.store(dresidual_ + place, dy, mask=inside)
                dy = dy.to(tl.float32)
            dbiases += dy
            dweights += dy * (x - mean[None, :]) * rstd[None, :]
        dbias, dweight = tl.sum(dbiases, 0), tl.sum(dweights, 0)
    tl.store(dparameters_ + image * 2 * CHANNELS + channel, dweight)
    tl.store(dparameters_ + (image * 2 + 1) * CHANNELS + channel, dbias)
    along_one = per_channel(
        tl.sum(tl.reshape(dbias * weight, (GROUPS, SIZE)), 1) / count, GROUPS, SIZE
    )
    along_x = per_channel(
        tl.sum(tl.reshape(dweight * weight, (GROUPS, SIZE)), 1) / count, GROUPS, SIZE
    )
    if WHOLE:
        if RESIDUAL:
            tl.store(dresidual_ + place, dy, mask=inside)
        tl.store(
            dx_ + place,
            rstd[None, :] * (weight[None, :] * dy - along_one[None, :] - xhat * along_x[None, :]),
            mask=inside,
        )
    else:
        if RESIDUAL:
            tl.debug_barrier()  # another thread may have written dresidual
        for first in range(0, pixels, ROWS):
            row = first + rows
            place = row[:, None] * CHANNELS + channel[None, :]
            inside = (row[:, None] < pixels) & (channel[None, :] < CHANNELS)
            x = tl.load(x_ + place, mask=inside, other=0.0).to(tl.float32)
            if RESIDUAL:
                dy = tl.load(dresidual_ + place, mask=inside, other=0.0).to(tl.float32)
            else:
                dy = _incoming(dy_, second_dy_, place, inside, TWO)
                if RELU:
                    dy = _through_relu(
                        dy, x, scale, shift, open_, row, block, pixels, False, CHANNELS, width, ROWS
                    )
            xhat = (x - mean[None, :]) * rstd[None, :]
            dx = rstd[None, :] * (
                weight[None, :] * dy - along_one[None, :] - xhat * along_x[None, :]
            )
            tl.store(dx_ + place, dx, mask=inside)


@triton.jit
def store_channel_sums(sums_, row, channel, total, squares, CHANNELS: tl.constexpr):
    """Store the sums of every channel and of its square in a row of (... 2 C)."""
    here = sums_ + row * 2 * CHANNELS + channel
    tl.store(here, tl.sum(total, 0))
    tl.store(here + CHANNELS, tl.sum(squares, 0))


@triton.jit
def _channel_sums(x_, sums_, pixels, parts, part_rows, CHANNELS: tl.constexpr, ROWS: tl.constexpr):
    """Sum every channel and its square over one part of an image's pixels."""
    image, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    rows, channel = tl.arange(0, ROWS), tl.arange(0, CHANNELS)
    total = tl.zeros((ROWS, CHANNELS), tl.float32)
    squares = tl.zeros((ROWS, CHANNELS), tl.float32)
    x_ += image * pixels * CHANNELS
    last = tl.minimum((part + 1) * part_rows, pixels)
    for first in range(part * part_rows, last, ROWS):
        row = first + rows
        inside = (row[:, None] < last) & (channel[None, :] < CHANNELS)
        x = tl.load(x_ + row[:, None] * CHANNELS + channel[None, :], mask=inside, other=0.0).to(
            tl.float32
        )
        total += x
        squares += x * x
    store_channel_sums(sums_, image * parts + part, channel, total, squares, CHANNELS)


@triton.jit
def _scales(
    sums_,
    weight_,
    bias_,
    scales_,
    mean_,
    rstd_,
    pixels,
    parts,
    epsilon,
    GROUPS: tl.constexpr,
    SIZE: tl.constexpr,
    PARTS: tl.constexpr,
):
    """Compute scale and shift of every channel, and mean and rstd of every group.

    The inputs are the sums over all parts of an image.
    """
    image = tl.program_id(0).to(tl.int64)
    channels: tl.constexpr = GROUPS * SIZE
    channel, part = tl.arange(0, channels), tl.arange(0, PARTS)
    inside = (part[:, None] < parts) & (channel[None, :] < channels)
    here = sums_ + (image * parts + part[:, None]) * 2 * channels + channel[None, :]
    total = tl.sum(tl.load(here, mask=inside, other=0.0), 0)
    squares = tl.sum(tl.load(here + channels, mask=inside, other=0.0), 0)
    weight, bias = (
        tl.load(weight_ + channel).to(tl.float32),
        tl.load(bias_ + channel).to(tl.float32),
    )
    mean, rstd, scale, shift = scale_and_shift(
        total, squares, weight, bias, pixels * SIZE, epsilon, GROUPS, SIZE
    )
    tl.store(scales_ + image * 2 * channels + channel, scale)
    tl.store(scales_ + (image * 2 + 1) * channels + channel, shift)
    group = image * GROUPS + tl.arange(0, GROUPS)
    tl.store(mean_ + group, mean)
    tl.store(rstd_ + group, rstd)


@triton.jit
def _group_norm_apply(
    x_,
    residual_,
    scales_,
    y_,
    pixels,
    part_rows,
    RESIDUAL: tl.constexpr,
    RELU: tl.constexpr,
    CHANNELS: tl.constexpr,
    ROWS: tl.constexpr,
):
    image, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    rows, channel = tl.arange(0, ROWS), tl.arange(0, CHANNELS)
    scale = tl.load(scales_ + image * 2 * CHANNELS + channel)
    shift = tl.load(scales_ + (image * 2 + 1) * CHANNELS + channel)
    x_ += image * pixels * CHANNELS
    y_ += image * pixels * CHANNELS
    residual_ += image * pixels * CHANNELS
    last = tl.minimum((part + 1) * part_rows, pixels)
    for first in range(part * part_rows, last, ROWS):
        row = first + rows
        inside = (row[:, None] < last) & (channel[None, :] < CHANNELS)
        place = row[:, None] * CHANNELS + channel[None, :]
        x = tl.load(x_ + place, mask=inside, other=0.0).to(tl.float32)
        _finish(x, scale, shift, residual_, y_, place, inside, RESIDUAL, RELU)


def fits(channels: int, groups: int) -> bool:
    """Return whether the kernels support this many channels and groups: powers of two."""
    powers = all(number & (number - 1) == 0 for number in (channels, groups))
    return powers and channels >= 8 and channels // groups >= 4


def group_norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    residual: Tensor | None,
    groups: int,
    *,
    relu: bool,
    epsilon: float,
) -> tuple[Tensor, Tensor]:
    """Compute relu(group_norm(x) + residual) of channels-last images (F C h w).

    Residual and ReLU are optional. The result is returned twice, in the same memory, so that the
    backward pass can sum the gradients of two consumers.
    """
    result: tuple[Tensor, Tensor] = GroupNorm.apply(
        x, weight, bias, residual, groups, relu, epsilon, torch.is_grad_enabled()
    )
    return result


class GroupNorm(torch.autograd.Function):
    """The autograd function of `group_norm`; `keep` says whether there will be a backward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        residual: Tensor | None,
        groups: int,
        relu: bool,
        epsilon: float,
        keep: bool,
    ) -> tuple[Tensor, Tensor]:
        x = x.contiguous(memory_format=torch.channels_last)
        residual = (
            None if residual is None else residual.contiguous(memory_format=torch.channels_last)
        )
        y = torch.empty_like(x)
        images, channels, height, width = x.shape
        pixels = height * width
        ctx.settings = residual is not None, relu, groups
        ctx.set_materialize_grads(False)
        if not keep and _share_out(images, pixels, channels):
            _few_large(x, residual, weight, bias, y, groups, relu, epsilon)
            return y, y.view_as(y)
        mean, rstd = torch.empty(2, images, groups, device=x.device, dtype=torch.float32)
        tiling = _tiling(channels, groups, pixels, back=False)
        bits = keep and relu and residual is not None
        was_open = None
        if bits:
            size = images * pixels * channels // 8
            was_open = torch.empty(size, device=x.device, dtype=torch.uint8)
        _group_norm_forward[(images, groups // tiling["GROUPS"])](
            x,
            x if residual is None else residual,
            weight,
            bias,
            y,
            y if was_open is None else was_open,
            mean,
            rstd,
            pixels,
            epsilon,
            RESIDUAL=residual is not None,
            RELU=relu,
            KEEP=bits,
            **tiling,
        )
        ctx.save_for_backward(x, was_open, weight, bias, mean, rstd)
        return y, y.view_as(y)

    @staticmethod
    def backward(
        ctx: Any, dy: Tensor | None, second_dy: Tensor | None
    ) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, was_open, weight, bias, mean, rstd = ctx.saved_tensors
        has_residual, relu, groups = ctx.settings
        if dy is None:
            dy, second_dy = second_dy, None
        if dy is None:
            return (None,) * 8
        images, channels, height, width = x.shape
        dy = dy.contiguous(memory_format=torch.channels_last)
        second_dy = (
            None if second_dy is None else second_dy.contiguous(memory_format=torch.channels_last)
        )
        dx = torch.empty_like(x)
        dresidual = torch.empty_like(x) if has_residual else None
        dparameters = torch.empty(images, 2, channels, device=x.device, dtype=torch.float32)
        tiling = _tiling(channels, groups, height * width, back=True)
        _group_norm_backward[(images * (groups // tiling["GROUPS"]),)](
            dy,
            dy if second_dy is None else second_dy,
            x if was_open is None else was_open,
            x,
            weight,
            bias,
            mean,
            rstd,
            dx,
            dx if dresidual is None else dresidual,
            dparameters,
            height * width,
            TWO=second_dy is not None,
            RESIDUAL=has_residual,
            RELU=relu,
            **tiling,
        )
        dweight, dbias = sum_rows(dparameters).to(weight.dtype)
        return dx, dweight, dbias, dresidual, None, None, None, None


def _tiling(channels: int, groups: int, pixels: int, *, back: bool) -> dict[str, Any]:
    """Return channels and rows per program, whether those are all rows, and its warps."""
    most_rows, per_thread = next(
        rest for least, *rest in (BACKWARD if back else FORWARD) if pixels >= least
    )
    size = channels // groups
    together = max(1, min(groups, CHANNELS_TOGETHER // size))
    rows = min(most_rows, triton.next_power_of_2(pixels))
    warps = triton.next_power_of_2(max(1, rows * together * size // (32 * per_thread)))
    return {
        "WHOLE": rows >= pixels,
        "CHANNELS": channels,
        "GROUPS": together,
        "SIZE": size,
        "ROWS": rows,
        "num_warps": min(16, warps),
    }


def _share_out(images: int, pixels: int, channels: int) -> bool:
    """Return whether images are so few and large that one program per group would be slow."""
    return pixels * channels > 2 * TILE and images * channels // 16 < PROGRAMS_TO_FILL_A_GPU


def parts_of(pixels: int, channels: int, images: int) -> tuple[int, int]:
    """Return the number of parts to split an image's pixels into, and the pixels per part."""
    most = max(1, min(64, PROGRAMS_TO_FILL_A_GPU // images))
    rows = max(triton.cdiv(pixels, most), max(1, TILE // channels))
    return triton.cdiv(pixels, rows), rows


def channel_scales(
    sums: Tensor, weight: Tensor, bias: Tensor, groups: int, pixels: int, epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute scale and shift of every channel (F 2 C), and mean and rstd of every group (F G).

    The input is the sums over parts (F parts 2 C).
    """
    images, parts, _, channels = sums.shape
    scales = torch.empty(images, 2, channels, device=sums.device, dtype=torch.float32)
    mean, rstd = torch.empty(2, images, groups, device=sums.device, dtype=torch.float32)
    _scales[(images,)](
        sums,
        weight,
        bias,
        scales,
        mean,
        rstd,
        pixels,
        parts,
        epsilon,
        GROUPS=groups,
        SIZE=channels // groups,
        PARTS=triton.next_power_of_2(parts),
        num_warps=4,
    )
    return scales, mean, rstd


def _few_large(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    y: Tensor,
    groups: int,
    relu: bool,
    epsilon: float,
) -> None:
    images, channels, height, width = x.shape
    pixels, rows = height * width, max(1, TILE // channels)
    parts, part_rows = parts_of(pixels, channels, images)
    sums = torch.empty(images, parts, 2, channels, device=x.device, dtype=torch.float32)
    _channel_sums[(images, parts)](
        x, sums, pixels, parts, part_rows, CHANNELS=channels, ROWS=rows, num_warps=4
    )
    scales, _, _ = channel_scales(sums, weight, bias, groups, pixels, epsilon)
    _group_norm_apply[(images, parts)](
        x,
        x if residual is None else residual,
        scales,
        y,
        pixels,
        part_rows,
        RESIDUAL=residual is not None,
        RELU=relu,
        CHANNELS=channels,
        ROWS=rows,
        num_warps=4,
    )
