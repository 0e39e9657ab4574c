"""Independent work at the same time: convolutions keep the matrix units busy while norms wait for memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial

import torch
from torch import Tensor


@cache
def _streams(device: torch.device, count: int) -> list[torch.cuda.Stream]:
    # Gradients come from several streams on purpose.
    getattr(torch.autograd.graph, "set_warn_on_accumulate_grad_stream_mismatch", lambda _: None)(False)
    return [torch.cuda.Stream(device) for _ in range(count)]


def side_by_side(jobs: Sequence[Callable[[], Tensor]], inputs: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """Results of jobs that read their `inputs` and not one another, each on a stream of its own; the first on the current one.

    The way back takes the same streams. Whoever called may use the results as if they had been computed in order.
    """
    if not inputs[0][0].is_cuda:
        return [job() for job in jobs]
    here = torch.cuda.current_stream(inputs[0][0].device)
    others = _streams(inputs[0][0].device, len(jobs) - 1)
    for stream, tensors in zip(others, inputs[1:], strict=True):
        stream.wait_stream(here)
        for tensor in tensors:
            tensor.record_stream(stream)
    results = [jobs[0]()]
    for stream, job in zip(others, jobs[1:], strict=True):
        with torch.cuda.stream(stream):
            results.append(job())
    for stream, result in zip(others, results[1:], strict=True):
        here.wait_stream(stream)
        result.record_stream(here)
    return results


def in_halves(function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """`function` of tensors (B ...), its two halves side by side: one multiplies matrices while the other waits for memory."""
    halves = list(zip(*(tensor.chunk(2) for tensor in tensors), strict=True))
    kind = tensors[0].device.type
    # A weight that autocast has converted for one half may not be there yet when the other one reads it.
    with torch.autocast(kind, torch.get_autocast_dtype(kind), enabled=torch.is_autocast_enabled(kind), cache_enabled=False):
        return torch.cat(side_by_side([partial(function, *half) for half in halves], halves))
