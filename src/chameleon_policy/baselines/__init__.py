"""The methods that Chameleon is compared with, trained and evaluated by the same code.

Read in this order: policy/visuomotor.py (the base of all) -> window -> flow_matching, diffusion,
act, transformer -> lstm; then the ablations, each of which changes one thing in Chameleon:
no_memory, similarity, vanilla_mamba, constant_index and undirected (two readings of the paper's
"w/o control index"), no_jepa; and one that the paper does not have: brief.
"""

from __future__ import annotations

from pathlib import Path

import torch

from chameleon_policy.baselines.act import ACTPolicy
from chameleon_policy.baselines.brief import BriefPolicy
from chameleon_policy.baselines.constant_index import ConstantIndexPolicy
from chameleon_policy.baselines.diffusion_transformer import DiffusionTransformerPolicy
from chameleon_policy.baselines.diffusion_unet import DiffusionUNetPolicy
from chameleon_policy.baselines.flow_matching import FlowMatchingPolicy
from chameleon_policy.baselines.lstm import RecurrentPolicy
from chameleon_policy.baselines.no_jepa import NoJepaPolicy
from chameleon_policy.baselines.no_memory import NoMemoryPolicy
from chameleon_policy.baselines.similarity import SimilarityPolicy
from chameleon_policy.baselines.transformer import TransformerPolicy
from chameleon_policy.baselines.undirected import UndirectedPolicy
from chameleon_policy.baselines.vanilla_mamba import VanillaMambaPolicy
from chameleon_policy.policy import ChameleonPolicy, VisuomotorPolicy
from chameleon_policy.policy.saving import describe

BASELINES: tuple[type[VisuomotorPolicy], ...] = (
    DiffusionTransformerPolicy,
    DiffusionUNetPolicy,
    ACTPolicy,
    FlowMatchingPolicy,
)
MEMORY_BASELINES: tuple[type[VisuomotorPolicy], ...] = (TransformerPolicy, RecurrentPolicy)
ABLATIONS: tuple[type[ChameleonPolicy], ...] = (
    NoMemoryPolicy,
    SimilarityPolicy,
    VanillaMambaPolicy,
    ConstantIndexPolicy,
    UndirectedPolicy,
    NoJepaPolicy,
    BriefPolicy,
)
ALL: tuple[type[VisuomotorPolicy], ...] = (
    ChameleonPolicy,
    *BASELINES,
    *MEMORY_BASELINES,
    *ABLATIONS,
)
METHODS: dict[str, type[VisuomotorPolicy]] = {kind.method: kind for kind in ALL}


def method_named(name: str) -> type[VisuomotorPolicy]:
    """Return the class of a method; ValueError with all names if there is none."""
    if not isinstance(name, str) or name not in METHODS:
        raise ValueError(f"there is no method {name!r:.80}; choose one of {', '.join(METHODS)}")
    return METHODS[name]


def load_policy(
    path_or_hub_id: str | Path, *, device: torch.device | str = "cpu"
) -> VisuomotorPolicy:
    """Load a saved policy of any method, in eval mode."""
    directory, description = describe(path_or_hub_id)
    return method_named(description["method"]).from_pretrained(directory, device=device)


__all__ = [
    "ABLATIONS",
    "BASELINES",
    "MEMORY_BASELINES",
    "METHODS",
    "NoMemoryPolicy",
    "load_policy",
    "method_named",
]
