"""Table 1 of the paper as data, and the names and the order of the methods there and here."""

from __future__ import annotations

from dataclasses import dataclass

PAPER_TASKS = ("clean-plate", "shell-game", "seasonings")


@dataclass(frozen=True)
class PaperRow:
    """A line of Table 1, in per cent."""

    name: str
    tasks: tuple[tuple[float, float], ...]
    """DSR and SR of each of PAPER_TASKS."""
    dsr: float
    msr: float
    sr: float
    """On average over the tasks."""


DIFFUSION = PaperRow("Diffusion Policy", ((33.3, 30.6), (34.3, 33.3), (0.0, 0.0)), 22.5, 67.6, 21.3)
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
    "no-control-index": PaperRow(
        "w/o control index", ((40.7, 30.6), (45.8, 30.6), (60.0, 16.7)), 48.8, 56.5, 26.0
    ),
    "no-jepa": PaperRow(
        "w/o Control-JEPA", ((82.8, 66.7), (71.0, 61.1), (61.1, 30.6)), 71.6, 72.2, 52.8
    ),
}
"""By the name of the method here. The paper has one Diffusion Policy: it stands beside both
kinds.
"""
SHARED = ("diffusion-transformer", "diffusion-unet")
"""Methods beside which the same line of the paper stands."""

REFERENCE = "chameleon"
"""What every other method is compared with, episode by episode."""
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
        "no-control-index",
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
    "no-control-index": "w/o control index",
    "no-jepa": "w/o Control-JEPA",
    "brief": "w/o lasting working state",
}
