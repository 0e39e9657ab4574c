"""The forward and backward pass of a training step as one launch: thousands of kernels, recorded
once and replayed.

A short step would otherwise wait for Python. A graph belongs to one shape of batch: the first batch
of a shape runs as usual, the second is recorded. One runs at a time, so they share the memory of
their activations and, most of them, of their batches; each keeps gradients of its own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from chameleon_policy.policy import EpisodeBatch

LENGTH_MULTIPLE = 8
"""Batches are padded to a multiple of this many time steps, long ones to a larger one, so that
there are few shapes.
"""
MOST_SHAPES = 24
"""Shapes beyond this many run without a graph."""


def loss_options(method: Any) -> dict[str, bool]:
    """What a method's loss can leave out in training: checks that wait for the device, and the
    memory after an episode.
    """
    taken = inspect.signature(method.loss).parameters
    return {name: False for name in ("check_values", "keep_state") if name in taken}


@dataclass(frozen=True, eq=False)
class _Recording:
    graph: torch.cuda.CUDAGraph
    batch: EpisodeBatch
    figures: dict[str, Tensor]
    gradients: list[tuple[nn.Parameter, Tensor | None]]


class GraphedLoss:
    """Loss and gradients of batches: `figures = graphed(batch)` leaves the gradients where
    `backward` would.
    """

    def __init__(self, method: Any, autocast: Callable[[], AbstractContextManager[Any]]) -> None:
        self.method, self.autocast = method, autocast
        self.options = loss_options(method)
        self.recordings: dict[Any, _Recording | None] = {}
        """None: this shape was seen once."""
        self.short_of_memory = False
        self.pool: Any = None
        self._batch_memory: dict[tuple[str, torch.dtype], Tensor] = {}
        """Name of a tensor in a batch and its type -> room for it."""

    def __call__(self, batch: EpisodeBatch) -> dict[str, Tensor]:
        """The loss and its parts, detached."""
        shape = tuple(
            (name, tuple(tensor.shape), tensor.dtype) for name, tensor in batch.tensors().items()
        )
        if shape not in self.recordings:
            if len(self.recordings) == MOST_SHAPES or self.short_of_memory:
                return self._run(batch)
            self.recordings[shape] = None
            figures = self._run(batch)
            # recordings have a memory of their own, and another process may need this one
            torch.cuda.empty_cache()
            return figures
        recording = self.recordings[shape]
        if recording is None:
            recording = self._record(batch)
            if recording is None:
                self.short_of_memory = True
                del self.recordings[shape]
                return self._run(batch)
            self.recordings[shape] = recording
        for mine, given in zip(
            recording.batch.tensors().values(), batch.tensors().values(), strict=True
        ):
            mine.copy_(given)
        recording.graph.replay()
        for parameter, gradient in recording.gradients:
            parameter.grad = gradient
        return {name: value.clone() for name, value in recording.figures.items()}

    def _keep(self, batch: EpisodeBatch) -> EpisodeBatch:
        """A copy of a batch in memory that recordings share.

        Where it does not fit, there is new memory of twice the size, and earlier recordings keep
        the old one: however the lengths come, all of it together is a few batches.
        """

        def keep(name: str, tensor: Tensor) -> Tensor:
            key = (name, tensor.dtype)
            memory = self._batch_memory.get(key)
            if memory is None or memory.numel() < tensor.numel():
                memory = tensor.new_empty(
                    max(tensor.numel(), 0 if memory is None else 2 * memory.numel())
                )
                self._batch_memory[key] = memory
            return memory[: tensor.numel()].view(tensor.shape).copy_(tensor)

        return batch.with_tensors(
            {name: keep(name, tensor) for name, tensor in batch.tensors().items()}
        )

    def _run(self, batch: EpisodeBatch) -> dict[str, Tensor]:
        with self.autocast():
            loss = self.method.loss(batch, **self.options)
        loss.total.backward()
        return {"loss": loss.total.detach(), **loss.parts}

    def _record(self, batch: EpisodeBatch) -> _Recording | None:
        """A recording, or None where memory does not suffice for one beside what is there."""
        self.method.zero_grad(set_to_none=True)
        torch.cuda.empty_cache()  # what running without a graph had used
        graph = torch.cuda.CUDAGraph()
        try:
            kept = self._keep(batch)
            # A host that waits would make the recording fail; what another thread does beside it is
            # its own affair.
            with torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
                figures = self._run(kept)
        except RuntimeError as error:
            if "out of memory" not in f"{error} {error.__context__}":
                raise
            # what was recorded up to here has never been computed
            self.method.zero_grad(set_to_none=True)
            return None
        self.pool = self.pool or graph.pool()
        gradients = [(parameter, parameter.grad) for parameter in self.method.parameters()]
        return _Recording(graph, kept, figures, gradients)
