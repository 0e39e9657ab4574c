"""Count parameters and bytes of memory of every preset and method, for the documents.

python -m benchmarks.parameters
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from chameleon_policy import PRESETS, ChameleonPolicy, Features, View, parameter_budget, preset
from chameleon_policy.baselines import METHODS
from chameleon_policy.camo.cameras import VIEWS
from chameleon_policy.policy.presets import budget_features
from chameleon_policy.provenance import write_result

RESULT = Path("docs/results/parameters.json")
METHODS_RESULT = Path("docs/results/method-parameters.json")
CAMO = Features(
    views=tuple(View(name=name, height=128, width=128) for name in VIEWS),
    proprioception=10,
    action=10,
    horizon=8,
)


def sizes() -> dict[str, Any]:
    """Return budget, extras and the bytes of one robot's memory, by preset."""
    result = {}
    for name in PRESETS:
        policy = ChameleonPolicy(preset(name), budget_features())
        branch = list(policy.control_jepa.parameters()) if policy.control_jepa else []
        speechless = ChameleonPolicy(
            preset(name), replace(budget_features(), language=None), with_control_jepa=False
        )
        state = policy.initial_state(1)
        result[name] = {
            **asdict(parameter_budget(policy)),
            "trainable_without_language": parameter_budget(speechless).trainable,
            "control_jepa": sum(p.numel() for p in branch),
            "control_jepa_trained": sum(p.numel() for p in branch if p.requires_grad),
            "state_bytes": state.nbytes,
            "state_tensor_bytes": {
                tensor_name: tensor.nbytes for tensor_name, tensor in state.tensors().items()
            },
        }
    return result


def methods() -> dict[str, dict[str, int]]:
    """Return the trainable parameters of every method, by preset, on Camo's pictures."""
    with torch.device("meta"):  # counted, not made
        return {
            name: {
                method: kind(preset(name), CAMO).parameter_count for method, kind in METHODS.items()
            }
            for name in PRESETS
        }


if __name__ == "__main__":
    write_result(RESULT, sizes(), command="python -m benchmarks.parameters", seeds=[])
    write_result(METHODS_RESULT, methods(), command="python -m benchmarks.parameters", seeds=[])
