"""The parameter budget, row by row as in the paper's table."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from chameleon_policy.policy.chameleon import ChameleonPolicy
from chameleon_policy.policy.ssm import SelectiveSSM

# The paper's table "Parameter budget", in millions.
PAPER_MILLIONS = {
    "visual": 22.9,
    "memory": 20.3,
    "memory_ssm": 5.1,
    "memory_rest": 15.2,
    "head": 23.1,
    "projections": 0.4,
    "trainable": 66.7,
}


@dataclass(frozen=True)
class Budget:
    """Numbers of trainable parameters; visual + memory + head + projections = trainable."""

    visual: int
    """Per-view encoders with their projections."""
    memory: int
    """All memory layers: memory_ssm + memory_rest."""
    memory_ssm: int
    memory_rest: int
    head: int
    projections: int
    """Proprioception, language or null token, object slots, slot embeddings."""
    trainable: int


def parameter_budget(policy: ChameleonPolicy) -> Budget:
    """Count the policy's parameters, without the training-only Control-JEPA branch."""
    visual = _count(policy.event_tokens.encoders)
    memory = _count(policy.memory)
    memory_ssm = sum(
        _count(module) for module in policy.memory.modules() if isinstance(module, SelectiveSSM)
    )
    head = _count(policy.action_flow)
    projections = _count(policy.event_tokens) - visual
    training_only = 0 if policy.control_jepa is None else _count(policy.control_jepa)
    trainable = _count(policy) - training_only
    assert visual + memory + head + projections == trainable
    return Budget(visual, memory, memory_ssm, memory - memory_ssm, head, projections, trainable)


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
