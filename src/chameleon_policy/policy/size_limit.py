"""A limit on what building something may ask for, before memory is asked for it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

MAKERS = (torch.empty, torch.zeros, torch.ones, torch.randn)
METHODS = (torch.Tensor.new_zeros, torch.Tensor.new_ones, torch.Tensor.new_empty)
"""Functions with which policies make weights and memories."""


class TooLargeError(ValueError):
    """More numbers were asked for than the limit allows."""


class SizeLimit(TorchFunctionMode):
    """A context in which tensors of so many numbers, all together, may be made, and no more.

    Those on the device `meta` need no memory and do not count.
    """

    def __init__(self, numbers: int) -> None:
        super().__init__()
        self.left = numbers

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Count what a function is about to make, and call it."""
        kwargs = kwargs or {}
        on_meta = torch.device(kwargs.get("device") or "cpu").type == "meta"
        if (function in MAKERS or function in METHODS) and not on_meta:
            given = args[1:] if function in METHODS else args
            sizes = kwargs.get("size", given[0] if len(given) == 1 else given)
            self.left -= math.prod(sizes) if isinstance(sizes, (tuple, list)) else sizes
            if self.left < 0:
                raise TooLargeError
        return function(*args, **kwargs)
