"""Attention, and the pre-LayerNorm transformer block of event binding and the action head."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn


class Attention(nn.Module):
    """Multi-head attention: softmax(Q K^T / sqrt(c)) V in every head of size c."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        """Keys of all heads, then values of all heads."""
        self.output = nn.Linear(width, width)

    def forward(self, queries: Tensor, sources: Tensor) -> Tensor:
        """Compute Attn(queries, sources, sources): (... M D) and (... N D) to (... M D)."""
        return self.output(attend(self.query(queries), self.key_value(sources), self.heads))

    def project(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Compute queries (... M D) and keys and values (... M 2D) of the same tokens."""
        width = self.output.in_features
        query, key_value = F.linear(tokens, *self.join()).split([width, 2 * width], dim=-1)
        return query, key_value

    def join(self) -> tuple[Tensor, Tensor]:
        """Return the joint weight (3D D) and bias (3D) of queries, keys and values."""
        weight = torch.cat([self.query.weight, self.key_value.weight])
        return weight, torch.cat([self.query.bias, self.key_value.bias])

    def weights(self, queries: Tensor, sources: Tensor) -> Tensor:
        """Compute attention weights (... heads M N), whose rows sum to one."""
        split = "... n (heads c) -> ... heads n c"
        queries = rearrange(self.query(queries), split, heads=self.heads)
        keys = rearrange(self.key_value(sources).chunk(2, dim=-1)[0], split, heads=self.heads)
        return torch.softmax(queries @ keys.mT * keys.shape[-1] ** -0.5, dim=-1)


def attend(query: Tensor, key_value: Tensor, heads: int) -> Tensor:
    """Mix values by softmax attention: (... M D) and key-values (... N 2D) to (... M D)."""
    keys, values = rearrange(
        key_value.flatten(0, -3), "b n (two heads c) -> two b heads n c", two=2, heads=heads
    )
    queries = rearrange(query.flatten(0, -3), "b m (heads c) -> b heads m c", heads=heads)
    mixed = rearrange(
        F.scaled_dot_product_attention(queries, keys, values), "b heads m c -> b m (heads c)"
    )
    return mixed.view(query.shape)


class TransformerBlock(nn.Module):
    """Pre-LayerNorm transformer block: x <- x + attn(norm(x)), then x <- x + mlp(norm(x))."""

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

    def forward(self, tokens: Tensor, context: Tensor | None = None) -> Tensor:
        """Mix tokens (... M D) with one another and with a context's key-values (... C 2D)."""
        return self.forward_and_cache(tokens, context)[0]

    def forward_and_cache(
        self, tokens: Tensor, context: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return what `forward` does, and the tokens' own key-values (... M 2D)."""
        query, own = self.attention.project(self.attention_norm(tokens))
        sources = own if context is None else torch.cat([context, own], dim=-2)
        tokens = tokens + self.attention.output(attend(query, sources, self.attention.heads))
        return tokens + self.feedforward(tokens), own

    def keys_and_values(self, tokens: Tensor) -> Tensor:
        """Compute keys and values (... M 2D) of tokens, as a context for other tokens."""
        return self.attention.key_value(self.attention_norm(tokens))


def two_layer_mlp(inputs: int, width: int) -> nn.Sequential:
    """Make the MLP of f_c, f_w, f_upd and g: inputs -> width -> width with GELU between."""
    return nn.Sequential(nn.Linear(inputs, width), nn.GELU(), nn.Linear(width, width))
