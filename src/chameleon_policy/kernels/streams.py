"""Independent work in parallel: convolutions use matrix units while norms wait for memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import torch
from torch import Tensor


@cache
def _streams(device: torch.device, count: int) -> list[torch.cuda.Stream]:
    # Gradients come from several streams by design.
    getattr(torch.autograd.graph, "set_warn_on_accumulate_grad_stream_mismatch", lambda _: None)(
        False
    )
    return [torch.cuda.Stream(device) for _ in range(count)]


def side_by_side(
    jobs: Sequence[Callable[[], Tensor]], inputs: Sequence[Sequence[Tensor]]
) -> list[Tensor]:
    """Run jobs that read their `inputs` and not one another, each on a stream of its own.

    The first job runs on the current stream; the backward pass uses the same streams. The caller
    may use the results as if they had been computed in order. The jobs must not share weights: a
    weight that autocast has converted for the first may not be ready when the second reads it.
    """
    device = inputs[0][0].device
    if device.type != "cuda":
        return [job() for job in jobs]
    here = torch.cuda.current_stream(device)
    others = _streams(device, len(jobs) - 1)
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
