"""CUDA graphs of training steps.

Thousands of kernels are recorded once and replayed in one launch, so that a short step does not
wait for Python. A graph belongs to one shape of batch: the first batch of a shape runs without a
graph, the second is recorded. Only one graph runs at a time, so that they share the memory of their
activations and, mostly, of their batches. Each graph has gradients of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from chameleon_policy.policy import EpisodeBatch, VisuomotorPolicy

LENGTH_MULTIPLE = 8
"""Batches are padded to a multiple of this many time steps, long ones to a larger one, so that
there are few shapes."""
MOST_SHAPES = 24
"""Number of shapes with a graph."""
MEMORY_ALLOCATION = 2
"""CUDA's code of the error that memory is full, cudaErrorMemoryAllocation."""


@dataclass(frozen=True, eq=False)
class _Recording:
    """A graph with the tensors that it reads and writes."""

    graph: torch.cuda.CUDAGraph
    batch: EpisodeBatch
    metrics: dict[str, Tensor]
    gradients: list[tuple[nn.Parameter, Tensor | None]]


class GraphedLoss:
    """The loss of a policy on whole episodes, with its backward pass.

    `metrics = graphed(batch)` leaves the gradients where `backward` would.
    """

    def __init__(
        self, policy: VisuomotorPolicy, autocast: Callable[[], AbstractContextManager[Any]]
    ) -> None:
        self.policy, self.autocast = policy, autocast
        self.recordings: dict[Any, _Recording | None] = {}
        """The recording of each shape; None after the first batch of a shape."""
        self.short_of_memory = False
        self.pool: Any = None
        self._batch_memory: dict[tuple[str, torch.dtype], Tensor] = {}
        """Memory for each tensor of a batch, by its name and type."""

    def __call__(self, batch: EpisodeBatch) -> dict[str, Tensor]:
        """Return the loss and its parts, detached, and leave gradients in the parameters."""
        shape = tuple(
            (name, tuple(tensor.shape), tensor.dtype) for name, tensor in batch.tensors().items()
        )
        if shape not in self.recordings:
            if len(self.recordings) == MOST_SHAPES or self.short_of_memory:
                return self._run(batch)
            self.recordings[shape] = None
            metrics = self._run(batch)
            # Graphs have memory of their own, and another process may need this one.
            torch.cuda.empty_cache()
            return metrics
        recording = self.recordings[shape]
        if recording is None:
            recording = self._record(batch)
            if recording is None:
                self.short_of_memory = True
                del self.recordings[shape]
                return self._run(batch)
            self.recordings[shape] = recording
        recorded = recording.batch.tensors()
        for name, tensor in batch.tensors().items():
            recorded[name].copy_(tensor)
        recording.graph.replay()
        for parameter, gradient in recording.gradients:
            parameter.grad = gradient
        return {name: value.clone() for name, value in recording.metrics.items()}

    def _keep(self, batch: EpisodeBatch) -> EpisodeBatch:
        """Copy a batch into memory that recordings share.

        Where it does not fit, new memory of twice the size is allocated, and earlier recordings
        keep the old one: in any order of lengths, all memory together is that of a few batches.
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
            loss = self.policy.loss(batch, check_values=False, keep_state=False)
        loss.total.backward()
        return {"loss": loss.total.detach(), **loss.parts}

    def _record(self, batch: EpisodeBatch) -> _Recording | None:
        """Return a recording, or None if the GPU's memory does not suffice for one."""
        self.policy.zero_grad(set_to_none=True)
        torch.cuda.empty_cache()  # frees the memory of steps that ran without a graph
        graph = torch.cuda.CUDAGraph()
        try:
            kept = self._keep(batch)
            # Waiting for the device would end the recording with an error; other threads may wait.
            with torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
                metrics = self._run(kept)
        except RuntimeError as error:
            if not _is_out_of_memory(error):
                raise
            # what has been recorded so far was never computed
            self.policy.zero_grad(set_to_none=True)
            return None
        self.pool = self.pool or graph.pool()
        gradients = [(parameter, parameter.grad) for parameter in self.policy.parameters()]
        return _Recording(graph, kept, metrics, gradients)


def _is_out_of_memory(error: BaseException | None) -> bool:
    """Return whether the GPU's memory was full, according to an error or the one before it.

    Ending a recording after such an error raises another one.
    """
    if error is None:
        return False
    of_allocator = isinstance(error, torch.cuda.OutOfMemoryError)
    of_cuda = getattr(error, "error_code", None) == MEMORY_ALLOCATION  # a torch.AcceleratorError
    return of_allocator or of_cuda or _is_out_of_memory(error.__context__)
