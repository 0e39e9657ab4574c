"""Embeddings of the instructions of clients."""

from __future__ import annotations

from collections import OrderedDict
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
        kept = self._recent()
        if text not in kept:
            kept[text] = self._encode([text])[0]
        kept.move_to_end(text)
        if len(kept) > KEPT:
            kept.popitem(last=False)
        return kept[text]

    def _recent(self) -> OrderedDict[str, Tensor]:
        if not isinstance(self._cache, OrderedDict):
            self._cache = OrderedDict(self._cache)
        return self._cache
