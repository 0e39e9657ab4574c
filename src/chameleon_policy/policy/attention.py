"""Attention and the pre-LayerNorm transformer block that event binding and the action head share."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

KeysValues = tuple[Tensor, Tensor]


class Attention(nn.Module):
    """Multi-head attention, 4 d^2 + 4 d parameters."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.output = nn.Linear(width, width)

    def forward(self, queries: Tensor, sources: Tensor) -> Tensor:
        """Attn(queries, sources, sources): (... M D) and (... N D) to (... M D)."""
        return self.attend(queries, self.keys_values(sources))

    def keys_values(self, sources: Tensor) -> KeysValues:
        """Keys and values (... heads N D/heads) of (... N D), for `attend`."""
        keys, values = rearrange(
            self.key_value(sources), "... n (two heads c) -> two ... heads n c", two=2, heads=self.heads
        ).unbind(0)
        return keys, values

    def attend(self, queries: Tensor, keys_values: KeysValues) -> Tensor:
        """Attention of (... M D) over keys and values made before."""
        query = rearrange(self.query(queries), "... m (heads c) -> ... heads m c", heads=self.heads)
        keys, values = keys_values
        # The fused kernels want exactly one batch dimension.
        mixed = F.scaled_dot_product_attention(query.flatten(0, -4), keys.flatten(0, -4), values.flatten(0, -4))
        return self.output(rearrange(mixed, "b heads m c -> b m (heads c)").view_as(queries))


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

    def forward(self, tokens: Tensor, context: KeysValues | None = None) -> tuple[Tensor, KeysValues]:
        """Tokens (... M D) attend to themselves and to `context`; returns them with their own keys and values."""
        normed = self.attention_norm(tokens)
        own = self.attention.keys_values(normed)
        visible = own if context is None else (torch.cat([context[0], own[0]], -2), torch.cat([context[1], own[1]], -2))
        tokens = tokens + self.attention.attend(normed, visible)
        return tokens + self.feedforward(tokens), own

    def keys_values(self, tokens: Tensor) -> KeysValues:
        """The keys and values that `forward` returns, without the rest."""
        return self.attention.keys_values(self.attention_norm(tokens))


def two_layer_mlp(inputs: int, width: int) -> nn.Sequential:
    """The MLP of f_c, f_w, f_upd and g: inputs -> width -> width with GELU between."""
    return nn.Sequential(nn.Linear(inputs, width), nn.GELU(), nn.Linear(width, width))
