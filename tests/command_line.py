"""Output of commands, independent of the width of the terminal."""

from __future__ import annotations

import re


def plain(text: str) -> str:
    """Return the text of an output without frames and line breaks."""
    return " ".join(re.sub("[╭╮╰╯│─]", " ", text).split())
