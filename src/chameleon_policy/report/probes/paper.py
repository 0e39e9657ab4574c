"""Appendix F of the paper as data, in per cent."""

from __future__ import annotations

SEPARABILITY: dict[str, tuple[float, float]] = {
    "shell-game": (46.7, 83.3),
    "seasonings": (37.4, 98.5),
}
"""Task -> z read from current tokens and from memory."""
ADDRESSABILITY: dict[str, float] = {"Full": 93.0, "Swap": 87.0, "Mask+": 40.0, "Mask-": 90.0}
"""Intervention in seasonings -> the choice follows the memory."""
LEADS: tuple[int, int] = (17, 10)
"""Steps by which Chameleon is ready earlier than without Control-JEPA, in a reaching and in a
sequential task.
"""
