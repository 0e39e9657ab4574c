"""Embeddings of the instructions of clients."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from chameleon_policy.policy.language import InstructionEncoder

Embed = Callable[[str], Tensor]
"""Maps a text to its embedding (W)."""
KEPT = 256
"""Embeddings that are kept. `InstructionEncoder` keeps all, but clients may send any number."""


class KeptInstructions(InstructionEncoder):
    """A text encoder that keeps the most recently used embeddings."""

    def __call__(self, text: str) -> Tensor:
        """Return the embedding of one text (W)."""
        embedding = self._cache.pop(text, None)
        if embedding is None:
            embedding = self._encode([text])[0]
        self._cache[text] = embedding  # at the end: the least recently used one is the first
        if len(self._cache) > KEPT:
            del self._cache[next(iter(self._cache))]
        return embedding
