"""The weights of many linear layers, converted in one launch.

Autocast launches a kernel for each weight, and one for each gradient.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


class _Converted(torch.autograd.Function):
    """Tensors in another type, with gradients in their own: one launch for all in each pass."""

    @staticmethod
    def forward(ctx: Any, kind: torch.dtype, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.kinds = [tensor.dtype for tensor in tensors]
        ctx.set_materialize_grads(False)
        converted = [torch.empty_like(tensor, dtype=kind) for tensor in tensors]
        torch._foreach_copy_(converted, list(tensors))
        return tuple(converted)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        given = [gradient for gradient in gradients if gradient is not None]
        kinds = [
            kind
            for kind, gradient in zip(ctx.kinds, gradients, strict=True)
            if gradient is not None
        ]
        converted = [
            torch.empty_like(gradient, dtype=kind)
            for gradient, kind in zip(given, kinds, strict=True)
        ]
        if given:
            torch._foreach_copy_(converted, given)
        remaining = iter(converted)
        return (None, *(None if gradient is None else next(remaining) for gradient in gradients))


@contextmanager
def converted(modules: Iterable[nn.Module], kind: torch.dtype) -> Iterator[None]:
    """Use weights of type `kind` in all linear layers, inside a `with` block.

    Gradients reach the original weights.
    """
    linear = (
        layer for module in modules for layer in module.modules() if isinstance(layer, nn.Linear)
    )
    layers = [layer for layer in dict.fromkeys(linear) if layer.weight.dtype != kind]
    weights = [layer.weight for layer in layers]
    try:
        if weights:
            for layer, weight in zip(layers, _Converted.apply(kind, *weights), strict=True):
                layer._parameters["weight"] = weight
        yield
    finally:
        for layer, weight in zip(layers, weights, strict=True):
            layer._parameters["weight"] = weight
