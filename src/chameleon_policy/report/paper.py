"""The numbers that the paper publishes, and the names and the order of methods in tables."""

from __future__ import annotations

from dataclasses import dataclass

from chameleon_policy.suite import PAPER_TASKS as PAPER_TASKS


@dataclass(frozen=True)
class PaperRow:
    """A row of Table 1, in per cent."""

    name: str
    tasks: tuple[tuple[float, float], ...]
    """DSR and SR of each of PAPER_TASKS."""
    dsr: float
    msr: float
    sr: float
    """On average over the tasks."""


DIFFUSION = PaperRow("Diffusion Policy", ((33.3, 30.6), (34.3, 33.3), (0.0, 0.0)), 22.5, 67.6, 21.3)
NO_CONTROL_INDEX = PaperRow(
    "w/o control index", ((40.7, 30.6), (45.8, 30.6), (60.0, 16.7)), 48.8, 56.5, 26.0
)
TABLE_1: dict[str, PaperRow] = {
    "diffusion-transformer": DIFFUSION,
    "diffusion-unet": DIFFUSION,
    "act": PaperRow("ACT", ((28.0, 19.4), (35.5, 30.6), (0.0, 0.0)), 21.2, 51.8, 16.7),
    "flow-matching": PaperRow(
        "Flow Matching", ((30.0, 25.0), (25.7, 25.0), (0.0, 0.0)), 18.6, 62.0, 16.7
    ),
    "chameleon": PaperRow(
        "Chameleon", ((91.2, 86.1), (86.1, 86.1), (65.2, 41.7)), 80.8, 86.1, 71.3
    ),
    "no-memory": PaperRow("w/o memory", ((26.7, 22.2), (34.4, 30.6), (0.0, 0.0)), 20.4, 64.8, 17.6),
    "similarity": PaperRow(
        "similarity retrieval", ((41.4, 33.3), (28.6, 22.2), (0.0, 0.0)), 23.3, 58.3, 18.5
    ),
    "vanilla-mamba": PaperRow(
        "vanilla Mamba", ((27.6, 22.2), (30.0, 25.0), (50.0, 19.4)), 35.9, 67.6, 22.2
    ),
    "constant-index": NO_CONTROL_INDEX,
    "undirected": NO_CONTROL_INDEX,
    "no-jepa": PaperRow(
        "w/o Control-JEPA", ((82.8, 66.7), (71.0, 61.1), (61.1, 30.6)), 71.6, 72.2, 52.8
    ),
}
"""Name of a method here -> its row. Two rows are used twice: see `SHARED`."""
SHARED = ("diffusion-transformer", "diffusion-unet", "constant-index", "undirected")
"""Methods that share a row: the paper has one Diffusion Policy and one "w/o control index"."""

REFERENCE = "chameleon"
"""The method that all others are compared with, episode by episode."""
SECTIONS: dict[str, tuple[str, ...]] = {
    "Matched imitation baselines": (
        "diffusion-transformer",
        "diffusion-unet",
        "act",
        "flow-matching",
    ),
    "Memory baselines beyond the paper": ("transformer-64", "lstm"),
    "Chameleon": (REFERENCE,),
    "Mechanism ablations": (
        "no-memory",
        "similarity",
        "vanilla-mamba",
        "constant-index",
        "undirected",
        "no-jepa",
    ),
    "Ablation beyond the paper": ("brief",),
}
OTHERS = "Other methods"
NAMES = {
    "diffusion-transformer": "Diffusion Policy, transformer",
    "diffusion-unet": "Diffusion Policy, U-Net",
    "act": "ACT",
    "flow-matching": "Flow Matching",
    "transformer-64": "Transformer, 64 frames",
    "lstm": "LSTM",
    "chameleon": "Chameleon",
    "no-memory": "w/o memory",
    "similarity": "similarity retrieval",
    "vanilla-mamba": "vanilla Mamba",
    "constant-index": "constant control index",
    "undirected": "undirected recall",
    "no-jepa": "w/o Control-JEPA",
    "brief": "w/o lasting working state",
}

# Appendix F, in per cent.
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
