"""The action head's Euler steps for one or a few robots, where latency matters most.

A step reads 38 MB of weights and does little with them, so every kernel loads its weights into
registers before it waits for the previous kernel (programmatic dependent launch). Each block of the
head takes four kernels:

    _linear    LayerNorm and the projection to queries, keys and values
    _attend    attention over the chunk and the policy tokens, output projection, residual sum
    _linear    LayerNorm, first layer of the feed-forward network, GELU
    _linear    its second layer, residual sum

and every step one `_advance`: LayerNorm, the endpoint, the Euler update and the next step's tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from chameleon_policy.kernels import AMPLE_SHARED_MEMORY, tile_of

EPSILON = 1e-5
COLUMNS = {"linear": 16, "long": 16, "attend": 16}
"""Output columns of a program, by kernel; `long` is the feed-forward network's second layer."""
STREAM = torch.bfloat16
"""Type of the tokens between the blocks."""
MOST_ROWS = {"linear": 32, "long": 16}
"""Largest number of rows of a program, as shared memory allows."""
SPLIT = {"linear": 4, "long": 8}
"""Parallel parts of the inner dimension."""
WARPS = {"linear": 4, "long": 8, "attend": 8, "advance": 8}


@triton.jit
def _linear(
    x_,
    gamma_,
    beta_,
    w_,
    b_,
    out_,
    rows,
    columns,
    epsilon,
    NORM: tl.constexpr,
    BIAS: tl.constexpr,
    GELU: tl.constexpr,
    ADD: tl.constexpr,
    K: tl.constexpr,
    SPLIT: tl.constexpr,
    ROUNDS: tl.constexpr,
    M: tl.constexpr,
    BN: tl.constexpr,
    PDL: tl.constexpr,
):
    """Compute out = gelu(norm(x) w^T + b), or out += that, for M rows and BN columns.

    The inner dimension is split into SPLIT parts in parallel and, without NORM, into ROUNDS in
    sequence.
    """
    row = tl.program_id(1) * M + tl.arange(0, M)
    column = tl.program_id(0) * BN + tl.arange(0, BN)
    together: tl.constexpr = K // ROUNDS
    part: tl.constexpr = together // SPLIT
    k = tl.arange(0, SPLIT)[:, None] * part + tl.arange(0, part)[None, :]
    real_row, real_column = row < rows, column < columns
    w = tl.load(
        w_ + column[None, None, :] * K + k[:, :, None], mask=real_column[None, None, :], other=0.0
    )
    if NORM:
        gamma, beta = tl.load(gamma_ + k).to(tl.float32), tl.load(beta_ + k).to(tl.float32)
    if BIAS:
        bias = tl.load(b_ + column, mask=real_column, other=0.0).to(tl.float32)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    x = tl.load(
        x_ + row[None, :, None] * K + k[:, None, :], mask=real_row[None, :, None], other=0.0
    )
    if NORM:
        x = x.to(tl.float32)
        mean = tl.sum(tl.sum(x, 2), 0) / K
        rstd = 1 / tl.sqrt(tl.maximum(tl.sum(tl.sum(x * x, 2), 0) / K - mean * mean, 0.0) + epsilon)
        x = (x - mean[None, :, None]) * rstd[None, :, None] * gamma[:, None, :] + beta[:, None, :]
    result = tl.sum(tl.dot(x.to(w.dtype), w, input_precision="ieee"), 0)
    for _ in tl.static_range(1, ROUNDS):
        k += together
        w = tl.load(
            w_ + column[None, None, :] * K + k[:, :, None],
            mask=real_column[None, None, :],
            other=0.0,
        )
        x = tl.load(
            x_ + row[None, :, None] * K + k[:, None, :], mask=real_row[None, :, None], other=0.0
        )
        result += tl.sum(tl.dot(x.to(w.dtype), w, input_precision="ieee"), 0)
    if BIAS:
        result += bias[None, :]
    if GELU:
        result = 0.5 * result * (1 + tl.erf(result * 0.7071067811865476))
    place = row[:, None] * columns + column[None, :]
    inside = real_row[:, None] & real_column[None, :]
    if ADD:
        result += tl.load(out_ + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ + place, result, mask=inside)


@triton.jit
def _attend(
    qkv_,
    context_,
    w_,
    b_,
    tokens_,
    scale,
    count,
    context_count,
    CONTEXT: tl.constexpr,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    M: tl.constexpr,
    C: tl.constexpr,
    BN: tl.constexpr,
    PDL: tl.constexpr,
):
    """Compute tokens += attention w^T + b for one robot and BN columns.

    Program axis 0 is the columns, axis 1 the robot with its `count` tokens.
    """
    width: tl.constexpr = HEADS * SIZE
    robot = tl.program_id(1)
    column = tl.program_id(0) * BN + tl.arange(0, BN)
    k = tl.arange(0, width)
    w = tl.load(w_ + column[None, :] * width + k[:, None])
    bias = tl.load(b_ + column).to(tl.float32)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    head, m, s, c = tl.arange(0, HEADS), tl.arange(0, M), tl.arange(0, SIZE), tl.arange(0, C)
    within = head[:, None, None] * SIZE
    row = robot * count + m
    base = row[None, :, None] * (3 * width) + within + s[None, None, :]
    turned = row[None, None, :] * (3 * width) + within + s[None, :, None]
    q = tl.load(qkv_ + base, mask=m[None, :, None] < count, other=0.0)
    keys = tl.load(qkv_ + turned + width, mask=m[None, None, :] < count, other=0.0)
    values = tl.load(qkv_ + base + 2 * width, mask=m[None, :, None] < count, other=0.0)
    own = tl.where(m[None, None, :] < count, tl.dot(q, keys, input_precision="ieee") * scale, -1e30)
    top = tl.max(own, 2)
    if CONTEXT:
        there = robot * context_count + c
        turned = there[None, None, :] * (3 * width) + width + within + s[None, :, None]
        context_keys = tl.load(context_ + turned, mask=c[None, None, :] < context_count, other=0.0)
        base = there[None, :, None] * (3 * width) + 2 * width + within + s[None, None, :]
        context_values = tl.load(context_ + base, mask=c[None, :, None] < context_count, other=0.0)
        other = tl.where(
            c[None, None, :] < context_count,
            tl.dot(q, context_keys, input_precision="ieee") * scale,
            -1e30,
        )
        top = tl.maximum(top, tl.max(other, 2))
    own = tl.exp(own - top[:, :, None])
    total = tl.sum(own, 2)
    mixed = tl.dot(own.to(values.dtype), values, input_precision="ieee")
    if CONTEXT:
        other = tl.exp(other - top[:, :, None])
        total += tl.sum(other, 2)
        mixed += tl.dot(other.to(values.dtype), context_values, input_precision="ieee")
    mixed = tl.reshape(tl.permute(mixed / total[:, :, None], (1, 0, 2)), (M, width))
    result = tl.dot(mixed.to(w.dtype), w, input_precision="ieee") + bias[None, :]
    place = row[:, None] * width + column[None, :]
    inside = (m[:, None] < count) & (column[None, :] < width)
    result += tl.load(tokens_ + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(tokens_ + place, result, mask=inside)


@triton.jit
def _advance(
    tokens_,
    gamma_,
    beta_,
    out_w_,
    out_b_,
    in_w_,
    in_b_,
    places_,
    times_,
    chunk_,
    step,
    left,
    horizon,
    actions,
    epsilon,
    FIRST: tl.constexpr,
    LAST: tl.constexpr,
    K: tl.constexpr,
    SPLIT: tl.constexpr,
    M: tl.constexpr,
    A: tl.constexpr,
    PDL: tl.constexpr,
):
    """Apply the Euler update to one robot's chunk and compute the tokens of the next step."""
    robot = tl.program_id(0)
    m, a, k = tl.arange(0, M), tl.arange(0, A), tl.arange(0, K)
    row = robot * horizon + m
    real = m < horizon
    place = row[:, None] * actions + a[None, :]
    inside = real[:, None] & (a[None, :] < actions)
    token_place = row[:, None] * K + k[None, :]
    token_inside = real[:, None] & (k[None, :] < K)
    if not LAST:
        in_w = tl.load(
            in_w_ + k[None, :] * actions + a[:, None], mask=a[:, None] < actions, other=0.0
        )
        added = tl.load(places_ + m[:, None] * K + k[None, :], mask=token_inside, other=0.0)
        added += (tl.load(in_b_ + k).to(tl.float32) + tl.load(times_ + step * K + k))[None, :]
    if not FIRST:
        part: tl.constexpr = K // SPLIT
        j = tl.arange(0, SPLIT)[:, None] * part + tl.arange(0, part)[None, :]
        out_w = tl.load(
            out_w_ + a[None, None, :] * K + j[:, :, None],
            mask=a[None, None, :] < actions,
            other=0.0,
        )
        gamma, beta = tl.load(gamma_ + j).to(tl.float32), tl.load(beta_ + j).to(tl.float32)
        out_b = tl.load(out_b_ + a, mask=a < actions, other=0.0).to(tl.float32)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    chunk = tl.load(chunk_ + place, mask=inside, other=0.0)
    if not FIRST:
        x = tl.load(
            tokens_ + row[None, :, None] * K + j[:, None, :], mask=real[None, :, None], other=0.0
        ).to(tl.float32)
        mean = tl.sum(tl.sum(x, 2), 0) / K
        rstd = 1 / tl.sqrt(tl.maximum(tl.sum(tl.sum(x * x, 2), 0) / K - mean * mean, 0.0) + epsilon)
        x = (x - mean[None, :, None]) * rstd[None, :, None] * gamma[:, None, :] + beta[:, None, :]
        endpoint = (
            tl.sum(tl.dot(x.to(out_w.dtype), out_w, input_precision="ieee"), 0) + out_b[None, :]
        )
        chunk = chunk + (endpoint - chunk) / left
        tl.store(chunk_ + place, chunk, mask=inside)
    if not LAST:
        tokens = tl.dot(chunk.to(in_w.dtype), in_w, input_precision="ieee") + added
        tl.store(tokens_ + token_place, tokens, mask=token_inside)


def fits(flow: nn.Module) -> bool:
    """Return whether an action head has sizes that these kernels were tested with: the paper's.

    More policy tokens or action dimensions would exceed the shared memory of small cards.
    """
    width, heads = flow.width, flow.blocks[0].attention.heads
    hidden = flow.blocks[0].feedforward[1].out_features
    policy_tokens = flow.policy_tokens.out_features // width
    return (
        (width, heads, hidden, flow.horizon) == (512, 8, 2048, 16)
        and policy_tokens <= 16
        and flow.action <= 64
    )


class EulerSampler:
    """A sampler of action chunks for an ActionFlow in eval mode, with its current weights.

    All buffers are allocated here, so that a call can be captured in a CUDA graph.
    """

    def __init__(
        self, flow: Any, robots: int, steps: int, kind: torch.dtype, shared_memory: int
    ) -> None:
        weight = flow.action_out.weight
        device = weight.device
        self.robots, self.steps = robots, steps
        self.width, self.horizon, self.actions = flow.width, flow.horizon, flow.action
        self.heads = flow.blocks[0].attention.heads
        self.context = flow.policy_tokens.out_features // flow.width
        self.kind = kind
        # Enough for weights of two bytes; wider types need proportionally more.
        self.rounds = 1 if 2 * shared_memory >= kind.itemsize * AMPLE_SHARED_MEMORY else 2
        # Programmatic dependent launch came with Hopper.
        self.pdl = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)

        def prepared(tensor: Tensor) -> Tensor:
            return tensor.detach().to(kind).contiguous()

        self.policy_tokens = prepared(flow.policy_tokens.weight)
        self.action_in = prepared(flow.action_in.weight), prepared(flow.action_in.bias)
        self.action_out = prepared(flow.action_out.weight), prepared(flow.action_out.bias)
        self.norm = flow.norm.weight.detach(), flow.norm.bias.detach()
        self.blocks = [_weights_of(block, prepared) for block in flow.blocks]
        with torch.no_grad():
            flow_time = torch.arange(steps, device=device, dtype=torch.float32) / steps
            self.times = flow.time_token(flow_time, weight.dtype).float()
            self.places = flow.positions(self.times)

        def buffer(rows: int, columns: int, dtype: torch.dtype) -> Tensor:
            return torch.empty(rows, columns, dtype=dtype, device=device)

        hidden = self.blocks[0]["first"][0].shape[0]
        self.policy = buffer(robots * self.context, self.width, STREAM)
        self.policy_qkv = [buffer(robots * self.context, 3 * self.width, kind) for _ in self.blocks]
        self.tokens = buffer(robots * self.horizon, self.width, STREAM)
        self.qkv = buffer(robots * self.horizon, 3 * self.width, kind)
        self.hidden = buffer(robots * max(self.horizon, self.context), hidden, kind)

    def __call__(self, working: Tensor, chunk: Tensor) -> Tensor:
        """Sample normalised chunks, in place of the noise, from working states (B D) in float32."""
        self._linear(
            working.to(self.kind),
            None,
            (self.policy_tokens, None),
            self.policy.view(self.robots, -1),
        )
        for number, block in enumerate(self.blocks):
            qkv = self.policy_qkv[number]
            if number < len(self.blocks) - 1:
                self._block(block, self.policy, qkv, None)
            else:  # only keys and values of the last block are read
                self._linear(self.policy, block["norm"], block["qkv"], qkv)
        self._advance(chunk, 0, first=True)
        for step in range(self.steps):
            for block, context in zip(self.blocks, self.policy_qkv, strict=True):
                self._block(block, self.tokens, self.qkv, context)
            self._advance(chunk, step + 1)
        return chunk

    def _block(
        self, block: dict[str, Any], tokens: Tensor, qkv: Tensor, context: Tensor | None
    ) -> None:
        count = len(tokens) // self.robots
        hidden = self.hidden[: len(tokens)]
        self._linear(tokens, block["norm"], block["qkv"], qkv)
        _attend[(self.width // COLUMNS["attend"], self.robots)](
            qkv,
            qkv if context is None else context,
            *block["output"],
            tokens,
            (self.width // self.heads) ** -0.5,
            count,
            self.context,
            CONTEXT=context is not None,
            HEADS=self.heads,
            SIZE=self.width // self.heads,
            M=tile_of(count),
            C=tile_of(self.context),
            BN=COLUMNS["attend"],
            PDL=self.pdl,
            num_warps=WARPS["attend"],
            **self._launch,
        )
        self._linear(tokens, block["feedforward_norm"], block["first"], hidden, gelu=True)
        self._linear(hidden, None, block["second"], tokens, add=True)

    def _linear(
        self,
        x: Tensor,
        norm: tuple[Tensor, Tensor] | None,
        layer: tuple[Tensor, Tensor | None],
        out: Tensor,
        *,
        gelu: bool = False,
        add: bool = False,
    ) -> None:
        (weight, bias), rows = layer, len(x)
        columns, size = weight.shape
        name = "long" if size > 1024 else "linear"
        tile = min(MOST_ROWS[name], tile_of(rows))
        gamma, beta = norm or (weight, weight)
        _linear[(triton.cdiv(columns, COLUMNS[name]), triton.cdiv(rows, tile))](
            x,
            gamma,
            beta,
            weight,
            weight if bias is None else bias,
            out,
            rows,
            columns,
            EPSILON,
            NORM=norm is not None,
            BIAS=bias is not None,
            GELU=gelu,
            ADD=add,
            K=size,
            SPLIT=min(SPLIT[name], size // 16),
            ROUNDS=self.rounds if name == "long" else 1,
            M=tile,
            BN=COLUMNS[name],
            PDL=self.pdl,
            num_warps=WARPS[name],
            **self._launch,
        )

    def _advance(self, chunk: Tensor, step: int, *, first: bool = False) -> None:
        _advance[(self.robots,)](
            self.tokens,
            *self.norm,
            *self.action_out,
            *self.action_in,
            self.places,
            self.times,
            chunk,
            step,
            self.steps - step + 1,
            self.horizon,
            self.actions,
            EPSILON,
            FIRST=first,
            LAST=step == self.steps,
            K=self.width,
            SPLIT=min(8, self.width // 16),
            M=tile_of(self.horizon),
            A=tile_of(self.actions),
            PDL=self.pdl,
            num_warps=WARPS["advance"],
            **self._launch,
        )

    @property
    def _launch(self) -> dict[str, Any]:
        return {"launch_pdl": True} if self.pdl else {}


def _weights_of(block: Any, prepared: Callable[[Tensor], Tensor]) -> dict[str, Any]:
    """Return the weights and biases of a transformer block by kernel."""
    attention, (norm, first, _, second) = block.attention, block.feedforward
    before = block.attention_norm
    return {
        "norm": (before.weight.detach(), before.bias.detach()),
        "qkv": tuple(prepared(tensor) for tensor in attention.join()),
        "output": (prepared(attention.output.weight), prepared(attention.output.bias)),
        "feedforward_norm": (norm.weight.detach(), norm.bias.detach()),
        "first": (prepared(first.weight), prepared(first.bias)),
        "second": (prepared(second.weight), prepared(second.bias)),
    }
