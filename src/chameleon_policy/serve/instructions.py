"""Instructions of clients as embeddings."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from torch import Tensor

from chameleon_policy.policy.language import InstructionEncoder

Embed = Callable[[str], Tensor]
"""A text to its embedding (W)."""
KEPT = 256
"""Texts. The encoder by itself keeps all it has ever seen, which is too many where strangers choose
them.
"""


class KeptInstructions(InstructionEncoder):
    """A text encoder that keeps the embeddings that were asked for last."""

    def __call__(self, text: str) -> Tensor:
        """The embedding of one text (W)."""
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
