"""Every GPU kernel against plain code: outputs and gradients, on memory that is full of NaN.

On a CUDA device the kernels are compiled; elsewhere Triton's interpreter runs them on the CPU.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import pytest
import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from triton_device import DEVICE  # isort: skip

from chameleon_policy import preset
from chameleon_policy.kernels import euler
from chameleon_policy.kernels.attention import ShortAttention
from chameleon_policy.kernels.bias import WithBias
from chameleon_policy.kernels.gelu import BiasGelu
from chameleon_policy.kernels.group_norm import group_norm
from chameleon_policy.kernels.layer_norm import StreamNorm
from chameleon_policy.kernels.one_query import OneQuery
from chameleon_policy.kernels.stem import depth_weight, norm_pool, space_to_depth
from chameleon_policy.kernels.sums import sum_rows
from chameleon_policy.kernels.weights import converted
from chameleon_policy.policy.action_flow import ActionFlow
from chameleon_policy.policy.crop import crop, to_unit_range

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2}
DTYPES = [torch.float32, torch.bfloat16] if DEVICE == "cuda" else [torch.float32]
pytestmark = pytest.mark.usefixtures("poisoned_memory")


def normal(*shape: int, dtype: torch.dtype = torch.float32, grad: bool = True) -> Tensor:
    return torch.randn(shape, device=DEVICE).to(dtype).requires_grad_(grad)


def check(
    ours: Callable[..., Sequence[Tensor] | Tensor],
    plain: Callable[..., Sequence[Tensor] | Tensor],
    inputs: Sequence[Tensor],
    dtype: torch.dtype,
) -> None:
    """Check errors of all outputs and input gradients, relative to plain code in float64."""
    exact = [tensor.detach().double().requires_grad_(tensor.requires_grad) for tensor in inputs]
    results, expected = ours(*inputs), plain(*exact)
    results, expected = ([r] if isinstance(r, Tensor) else list(r) for r in (results, expected))
    directions = [torch.randn_like(e) for e in expected]
    trained = [tensor for tensor in inputs if tensor.requires_grad]
    sources = [tensor for tensor in exact if tensor.requires_grad]
    gradients = torch.autograd.grad(
        results, trained, [d.to(r.dtype) for d, r in zip(directions, results, strict=True)]
    )
    known = torch.autograd.grad(
        expected,
        sources,
        [d.to(r.dtype).double() for d, r in zip(directions, results, strict=True)],
    )
    for number, (got, right) in enumerate(
        zip([*results, *gradients], [*expected, *known], strict=True)
    ):
        error = (got.double() - right).norm() / right.norm()
        assert error < TOLERANCE[dtype], (
            f"tensor {number} of shape {tuple(right.shape)} is off by {error:.2e}"
        )


def channels_last(*shape: int, dtype: torch.dtype) -> Tensor:
    return (
        normal(*shape, dtype=dtype)
        .detach()
        .contiguous(memory_format=torch.channels_last)
        .requires_grad_()
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("shape", [(3, 16, 5, 7), (2, 64, 4, 4), (1, 32, 40, 41), (2, 8, 3, 3)])
def test_group_norm(shape: tuple[int, ...], relu: bool, residual: bool, dtype: torch.dtype) -> None:
    groups = max(1, shape[1] // 16)

    def plain(x: Tensor, weight: Tensor, bias: Tensor, more: Tensor | None = None) -> Tensor:
        y = F.group_norm(x, groups, weight, bias)
        y = y if more is None else y + more
        return 2 * (F.relu(y) if relu else y)

    def ours(x: Tensor, weight: Tensor, bias: Tensor, more: Tensor | None = None) -> Tensor:
        first, second = group_norm(x, weight, bias, more, groups, relu=relu, epsilon=1e-5)
        return first + second

    inputs = [channels_last(*shape, dtype=dtype), normal(shape[1]), normal(shape[1])]
    inputs += [channels_last(*shape, dtype=dtype)] if residual else []
    check(ours, plain, inputs, dtype)
    with torch.no_grad():  # few large images take another path
        exact = plain(*(tensor.double() for tensor in inputs))
        error = (ours(*inputs).double() - exact).norm() / exact.norm()
    assert error < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [(7, 9), (8, 8), (1, 5)])
def test_norm_and_pooling(size: tuple[int, int], dtype: torch.dtype) -> None:
    """Images come in cells of 2 x 2; pixels after an odd edge are NaN."""
    height, width = size

    def plain(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.max_pool2d(F.relu(F.group_norm(x, 2, weight, bias)), 3, stride=2, padding=1)

    def ours(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        even = F.pad(x, (0, width % 2, 0, height % 2), value=float("nan"))
        cells = rearrange(even, "f c (i a) (j b) -> f (a b c) i j", a=2, b=2)
        return norm_pool(cells, weight, bias, 2, 1e-5, size)

    check(ours, plain, [channels_last(3, 32, *size, dtype=dtype), normal(32), normal(32)], dtype)


@pytest.mark.parametrize("size", [(12, 14), (11, 13), (2, 16)])
@pytest.mark.parametrize("kind", [torch.uint8, torch.float32])
def test_the_first_convolution_over_cells_of_pixels(
    size: tuple[int, int], kind: torch.dtype
) -> None:
    images = torch.randint(256, (2, 3, 16, 18, 3), device=DEVICE)
    images = images.to(kind) if kind == torch.uint8 else images.to(kind) / 255
    weight = normal(8, 3, 7, 7)
    top, left = torch.tensor([1, 4], device=DEVICE), torch.tensor([2, 0], device=DEVICE)
    cells = space_to_depth(images, top, left, size, torch.float32)
    frames = to_unit_range(crop(images, top, left, size), torch.float64).flatten(0, 1)
    exact = weight.detach().double().requires_grad_()
    plain = F.conv2d(frames, exact, stride=2, padding=3)
    ours = rearrange(
        F.conv2d(cells, depth_weight(weight)), "f (a b c) i j -> f c (i a) (j b)", a=2, b=2
    )
    ours = ours[..., : plain.shape[2], : plain.shape[3]]
    torch.testing.assert_close(
        ours.double(), plain, rtol=1e-3 if DEVICE == "cuda" else 1e-5, atol=1e-3
    )
    direction = torch.randn_like(ours)
    (ours * direction).sum().backward()
    (plain * direction).sum().backward()
    torch.testing.assert_close(weight.grad.double(), exact.grad, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("shape", [(5, 3, 48), (1, 64), (2, 600, 16)])
def test_stream_norm(shape: tuple[int, ...], added: bool, dtype: torch.dtype) -> None:
    width = shape[-1]

    def plain(
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        more: Tensor | None = None,
        more_bias: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        x = x if more is None else x + more + more_bias
        return x, F.layer_norm(x, (width,), weight, bias)

    def ours(
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        more: Tensor | None = None,
        more_bias: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        return StreamNorm.apply(x, more, more_bias, weight, bias, 1e-5, dtype)

    check(
        ours,
        plain,
        [
            normal(*shape),
            normal(width),
            normal(width),
            *([normal(*shape, dtype=dtype), normal(width)] if added else []),
        ],
        dtype,
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("queries", "keys", "context"), [(34, 34, 0), (16, 16, 8), (1, 20, 0), (3, 5, 17), (70, 70, 0)]
)
def test_short_attention(queries: int, keys: int, context: int, dtype: torch.dtype) -> None:
    batch, heads, size = 2, 3, 16
    width = heads * size

    def split(tensor: Tensor, parts: int) -> Sequence[Tensor]:
        return tensor.unflatten(-1, (parts, heads, size)).permute(2, 0, 3, 1, 4)

    def plain(q: Tensor, kv: Tensor, more: Tensor | None = None) -> Tensor:
        k, v = split(kv if more is None else torch.cat([more, kv], 1), 2)
        return F.scaled_dot_product_attention(split(q, 1)[0], k, v).transpose(1, 2).flatten(2)

    def ours(q: Tensor, kv: Tensor, more: Tensor | None = None) -> Tensor:
        return ShortAttention.apply(q, kv, more, heads)[0]

    inputs = [
        normal(batch, queries, width, dtype=dtype),
        normal(batch, keys, 2 * width, dtype=dtype),
    ]
    inputs += [normal(batch, context, 2 * width, dtype=dtype)] if context else []
    check(ours, plain, inputs, dtype)

    def side_by_side(qkv: Tensor, more: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the mixed values, and the tokens' own keys and values for others."""
        mixed, own = ShortAttention.apply(
            qkv, None, None if more is None else more[..., width:], heads
        )
        return mixed, 3 * own

    def plain_side_by_side(qkv: Tensor, more: Tensor | None = None) -> tuple[Tensor, Tensor]:
        own = qkv[..., width:]
        return plain(qkv[..., :width], own, None if more is None else more[..., width:]), 3 * own

    inputs = [normal(batch, queries, 3 * width, dtype=dtype)]
    inputs += [normal(batch, context, 3 * width, dtype=dtype)] if context else []
    check(side_by_side, plain_side_by_side, inputs, dtype)
    check(
        lambda *tensors: side_by_side(*tensors)[1],
        lambda *tensors: plain_side_by_side(*tensors)[1],
        inputs[:1],
        dtype,
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("width", "heads", "sources"), [(32, 2, 5), (192, 6, 34), (512, 8, 100)])
def test_attention_of_one_query(width: int, heads: int, sources: int, dtype: torch.dtype) -> None:
    def plain(asked: Tensor, tokens: Tensor) -> Tensor:
        return (
            (asked.transpose(0, 1) @ tokens.transpose(1, 2))
            .softmax(-1)
            .matmul(tokens)
            .transpose(0, 1)
        )

    asked = (normal(heads, 3, width) / width**0.5).to(dtype).detach().requires_grad_()
    for shared_memory in (99 * 1024, 227 * 1024):  # bytes: the blocks of small and of large cards

        def ours(asked: Tensor, tokens: Tensor, shared_memory: int = shared_memory) -> Tensor:
            return OneQuery.apply(asked, tokens, shared_memory)

        check(ours, plain, [asked, normal(3, sources, width, dtype=dtype)], dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(3, 5, 24), (600, 16), (1, 600)])
def test_bias_and_gelu(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    def plain(x: Tensor, bias: Tensor) -> Tensor:
        return F.gelu(x + bias)

    check(BiasGelu.apply, plain, [normal(*shape, dtype=dtype), normal(shape[-1])], dtype)
    check(
        BiasGelu.apply,
        plain,
        [normal(*shape, dtype=dtype), normal(*shape[:-2], 1, shape[-1], dtype=dtype)],
        dtype,
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(3, 5, 24), (2000, 16), (1, 600)])
def test_gradient_of_a_bias(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    def ours(x: Tensor, bias: Tensor) -> Tensor:
        return 2 * WithBias.apply(x + bias.detach().to(dtype), bias)

    check(
        ours,
        lambda x, bias: 2 * (x + bias),
        [normal(*shape, dtype=dtype), normal(shape[-1])],
        dtype,
    )


@pytest.mark.parametrize("shape", [(3, 5), (1500, 2, 7), (1, 40)])
def test_sums_of_rows(shape: tuple[int, ...]) -> None:
    rows = normal(*shape, grad=False)
    torch.testing.assert_close(sum_rows(rows).double(), rows.double().sum(0), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    "shared_memory",
    [
        99 * 1024,
        pytest.param((227 if DEVICE == "cuda" else 320) * 1024, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize(
    ("horizon", "action", "robots", "ratio"), [(4, 2, 2, 4), (16, 10, 1, 4), (4, 2, 2, 32)]
)
def test_euler_steps(
    horizon: int,
    action: int,
    robots: int,
    ratio: int,
    shared_memory: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A feed-forward network of 2,048 channels, the paper's width, takes two rounds on small cards.

    In float32 memory is scarce on every card; the interpreter has no limit.
    """
    monkeypatch.setattr(euler, "STREAM", torch.float32)
    flow = (
        ActionFlow(dataclasses.replace(preset("nano"), feedforward_ratio=ratio), action, horizon)
        .to(DEVICE)
        .eval()
    )
    with torch.no_grad():
        for parameter in flow.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
        working = normal(robots, flow.width, grad=False)
        noise = normal(robots, horizon, action, grad=False)
        expected = flow.sample(working, 3, noise, None)
        sampled = euler.EulerSampler(flow, robots, 3, torch.float32, shared_memory)(
            working, noise.clone()
        )
    torch.testing.assert_close(sampled, expected, rtol=1e-4, atol=1e-4)


def test_weights_converted_at_once_are_those_of_autocast() -> None:
    """Results and gradients equal autocast's, also for a layer that is used twice or not at all.

    The weights are restored in any case.
    """
    model = torch.nn.Sequential(
        torch.nn.Linear(6, 6), torch.nn.Linear(6, 6), torch.nn.Linear(6, 3)
    ).to(DEVICE)
    inputs = normal(5, 6, grad=False)
    found = []
    for at_once in (False, True):
        model.zero_grad()
        with (
            torch.autocast(DEVICE, torch.bfloat16),
            converted([model] if at_once else [], torch.bfloat16),
        ):
            assert model[0].weight.dtype == (torch.bfloat16 if at_once else torch.float32)
            output = model[0](model[0](inputs)) @ model[1].weight.T
        output.float().square().sum().backward()
        found.append([output, *(parameter.grad for parameter in model.parameters())])
    assert found[1][-1] is None and found[1][1].dtype == torch.float32
    torch.testing.assert_close(
        [t for t in found[0] if t is not None],
        [t for t in found[1] if t is not None],
        rtol=0,
        atol=0,
    )
    with pytest.raises(RuntimeError), converted([model], torch.bfloat16):
        raise RuntimeError
    assert all(isinstance(layer.weight, torch.nn.Parameter) for layer in model)
