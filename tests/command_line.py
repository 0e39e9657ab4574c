"""What a command says, whatever the width of the terminal."""

from __future__ import annotations

import re


def plain(text: str) -> str:
    """Return the text without frames and line breaks."""
    return " ".join(re.sub("[╭╮╰╯│─]", " ", text).split())
