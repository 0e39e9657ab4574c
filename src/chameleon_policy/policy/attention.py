"""Attention and the pre-LayerNorm transformer block that event binding and the action head share."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from chameleon_policy import kernels


class Attention(nn.Module):
    """Multi-head attention, 4 d^2 + 4 d parameters."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        """Keys of all heads, then values of all heads, side by side."""
        self.output = nn.Linear(width, width)
        self.joined: tuple[Tensor, Tensor] | None = None
        """Weight and bias of queries, keys and values, after `prepare`."""

    def forward(self, queries: Tensor, sources: Tensor) -> Tensor:
        """Attn(queries, sources, sources): (... M D) and (... N D) to (... M D)."""
        if queries.shape[-2] == 1 and kernels.enabled(sources):
            from chameleon_policy.kernels.one_query import fits

            query = queries.flatten(0, -2)
            if fits(len(query), self.heads, sources.shape[-2]):
                return self.output(self._one_query(query, sources.flatten(0, -3)).view_as(queries))
        mixed, _ = mix(self.query(queries).flatten(0, -3), self.key_value(sources).flatten(0, -3), None, self.heads)
        return self.output(mixed.view_as(queries))

    def weights(self, queries: Tensor, sources: Tensor) -> Tensor:
        """How much each head looks where: (... M D) and (... N D) to (... heads M N), rows sum to one."""
        keys, _ = self.key_value(sources).chunk(2, dim=-1)
        asked, keys = (
            rearrange(tensor, "... n (heads c) -> ... heads n c", heads=self.heads) for tensor in (self.query(queries), keys)
        )
        return torch.softmax(asked @ keys.mT * keys.shape[-1] ** -0.5, dim=-1)

    @torch.no_grad()
    def prepare(self) -> None:
        """Join once what `projections` would join every time; for weights that no longer change."""
        self.joined = self._join()

    def _join(self) -> tuple[Tensor, Tensor]:
        return (
            torch.cat([self.query.weight, self.key_value.weight]),
            torch.cat([self.query.bias, self.key_value.bias]),
        )

    def _one_query(self, query: Tensor, sources: Tensor) -> Tensor:
        """Each of B queries (B D) attends to its own sources (B N D): (B D), before `output`."""
        from chameleon_policy.kernels.one_query import OneQuery

        to_keys, to_values = self.key_value.weight.unflatten(0, (2, self.heads, -1))  # each H C D
        scaled = self.query(query) * to_keys.shape[1] ** -0.5
        asked = torch.bmm(scaled.unflatten(-1, (self.heads, -1)).transpose(0, 1), to_keys)  # H B D
        seen = OneQuery.apply(asked, sources.to(asked.dtype))  # type: ignore[no-untyped-call]
        values = torch.bmm(seen, to_values.transpose(1, 2)).transpose(0, 1).flatten(1)
        return values + self.key_value.bias.chunk(2)[1].to(values.dtype)

    def projections(self, tokens: Tensor) -> Tensor:
        """Queries, keys and values (... M 3D) of the same tokens, in one product."""
        weight, bias = self.joined or self._join()
        return linear(tokens, weight, bias)

    def among(self, projections: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor]:
        """Tokens, given as `projections`, attend to one another and to keys and values (... C 2D) of a context.

        Returns (... M D), before `output`, and their own keys and values (... M 2D), for others to attend to.
        """
        width, shape = self.output.in_features, projections.shape[:-1]
        seen = None if context is None else context.flatten(0, -3)
        mixed, own = mix(projections.flatten(0, -3), None, seen, self.heads)
        return mixed.view(*shape, width), own.unflatten(0, shape[:-1])


def mix(query: Tensor, key_value: Tensor | None, context: Tensor | None, heads: int) -> tuple[Tensor, Tensor]:
    """Softmax attention of queries (B M D) over keys and values (B N 2D) and those of a context (B C 2D): (B M D), and the
    keys and values without the context's.

    Without `key_value`, `query` holds queries, keys and values side by side (B M 3D).
    """
    width = query.shape[-1] // (3 if key_value is None else 1)
    counts = [tensor.shape[1] for tensor in (query, key_value, context) if tensor is not None]
    if kernels.enabled(query) and (key_value is None or query.dtype == key_value.dtype):
        from chameleon_policy.kernels.attention import ShortAttention, fits

        if fits(width // heads, *counts):
            result: tuple[Tensor, Tensor] = ShortAttention.apply(query, key_value, context, heads)  # type: ignore[no-untyped-call]
            return result
    if key_value is None:
        query, key_value = query.split([width, 2 * width], dim=-1)
    visible = key_value if context is None else torch.cat([context, key_value], 1)
    keys, values = rearrange(visible, "b n (two heads c) -> two b heads n c", two=2, heads=heads)
    query = rearrange(query, "b m (heads c) -> b heads m c", heads=heads)
    mixed = rearrange(F.scaled_dot_product_attention(query, keys, values), "b heads m c -> b m (heads c)")
    return mixed, key_value


def add_and_norm(
    stream: Tensor, norm: nn.LayerNorm, layer: nn.Linear | None = None, inputs: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """A residual stream plus what the last layer of a sub-layer makes of its inputs, and the LayerNorm of the sum."""
    if kernels.enabled(stream):
        from chameleon_policy.kernels.layer_norm import StreamNorm

        added, bias = (None, None) if layer is None or inputs is None else (F.linear(inputs, layer.weight), layer.bias)
        kind = kernels.compute_dtype(stream)
        result: tuple[Tensor, Tensor] = StreamNorm.apply(stream, added, bias, norm.weight, norm.bias, norm.eps, kind)  # type: ignore[no-untyped-call]
        return result
    stream = stream if layer is None else stream + layer(inputs)
    return stream, norm(stream)


def linear(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """F.linear for many rows: where our kernels run, the gradient of the bias takes one pass."""
    if kernels.enabled(inputs):
        from chameleon_policy.kernels.bias import WithBias

        output: Tensor = WithBias.apply(F.linear(inputs, weight, bias.detach()), bias)  # type: ignore[no-untyped-call]
        return output
    return F.linear(inputs, weight, bias)


def gelu_layer(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """GELU behind a linear layer (... N D); its bias is one for all (D), or one for every N rows (... 1 D)."""
    if kernels.enabled(inputs):
        from chameleon_policy.kernels.gelu import BiasGelu

        hidden: Tensor = BiasGelu.apply(F.linear(inputs, weight), bias)  # type: ignore[no-untyped-call]
        return hidden
    return F.gelu(F.linear(inputs, weight, bias) if bias.dim() == 1 else F.linear(inputs, weight) + bias)


class TransformerBlock(nn.Module):
    """Pre-LayerNorm self-attention and feed-forward, both residual."""

    def __init__(self, width: int, heads: int, feedforward_ratio: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.feedforward = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, feedforward_ratio * width),
            nn.GELU(),
            nn.Linear(feedforward_ratio * width, width),
        )

    def forward(self, tokens: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Tokens (... M D) attend to themselves and to a context's keys and values (... C 2D); returns both of them."""
        tokens, hidden, own = self.unfinished(tokens, context)
        return tokens + linear(hidden, self.last.weight, self.last.bias), own

    def unfinished(
        self,
        tokens: Tensor,
        context: Tensor | None = None,
        before: TransformerBlock | None = None,
        hidden: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """`forward` before its last layer and sum, which whoever comes next does together with its norm: tokens, the last
        layer's inputs, keys and values. `before` and `hidden`: the block in front, left unfinished, and its inputs."""
        norm, first, _, _ = self.feedforward
        tokens, normed = add_and_norm(tokens, self.attention_norm, _last_of(before), hidden)
        mixed, own = self.attention.among(self.attention.projections(normed), context)
        tokens, normed = add_and_norm(tokens, norm, self.attention.output, mixed)  # type: ignore[arg-type]
        return tokens, gelu_layer(normed, first.weight, first.bias), own  # type: ignore[arg-type]

    def prepare(self) -> None:
        """See `Attention.prepare`."""
        self.attention.prepare()

    @property
    def last(self) -> nn.Linear:
        """The last layer of the feed-forward network."""
        layer: nn.Linear = self.feedforward[-1]  # type: ignore[assignment]
        return layer

    def keys_and_values(self, tokens: Tensor, before: TransformerBlock | None, hidden: Tensor | None) -> Tensor:
        """What `unfinished` returns last, without the rest."""
        _, normed = add_and_norm(tokens, self.attention_norm, _last_of(before), hidden)
        return linear(normed, self.attention.key_value.weight, self.attention.key_value.bias)


def _last_of(block: TransformerBlock | None) -> nn.Linear | None:
    return None if block is None else block.last


def two_layer_mlp(inputs: int, width: int) -> nn.Sequential:
    """The MLP of f_c, f_w, f_upd and g: inputs -> width -> width with GELU between."""
    return nn.Sequential(nn.Linear(inputs, width), nn.GELU(), nn.Linear(width, width))
