"""Independent work in parallel: one job's convolutions compute while another's norms use memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import torch
from torch import Tensor


@cache
def _streams(device: torch.device, count: int) -> list[torch.cuda.Stream]:
    # Gradients come from several streams by design.
    name = "set_warn_on_accumulate_grad_stream_mismatch"  # newer versions of torch have it
    getattr(torch.autograd.graph, name, lambda warn: None)(False)
    return [torch.cuda.Stream(device) for _ in range(count)]


def side_by_side(
    jobs: Sequence[Callable[[], Tensor]], inputs: Sequence[Sequence[Tensor]]
) -> list[Tensor]:
    """Run independent jobs, each on a stream of its own; `inputs` holds the tensors each one reads.

    The first job runs on the current stream; the backward pass uses the same streams. The caller
    may use the results as if they had been computed in order. The jobs must not share weights: a
    weight that autocast has converted for the first may not be ready when the second reads it.
    """
    device = inputs[0][0].device
    if device.type != "cuda":
        return [job() for job in jobs]
    current = torch.cuda.current_stream(device)
    others = _streams(device, len(jobs) - 1)
    for stream, tensors in zip(others, inputs[1:], strict=True):
        stream.wait_stream(current)
        for tensor in tensors:
            tensor.record_stream(stream)
    results = [jobs[0]()]
    for stream, job in zip(others, jobs[1:], strict=True):
        with torch.cuda.stream(stream):
            results.append(job())
    for stream, result in zip(others, results[1:], strict=True):
        current.wait_stream(stream)
        result.record_stream(current)
    return results
