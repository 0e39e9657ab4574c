"""Parameter counts and memory sizes of every preset, for the figures in the docs: `python -m benchmarks.parameters`."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from chameleon_policy import PRESETS, ChameleonPolicy, parameter_budget, preset
from chameleon_policy.policy.presets import budget_features
from chameleon_policy.report.provenance import write_result

RESULT = Path("docs/results/parameters.json")


def sizes() -> dict[str, Any]:
    """By preset, on the paper's features: the budget, what stands outside it, and the bytes of one robot's memory."""
    result = {}
    for name in PRESETS:
        policy = ChameleonPolicy(preset(name), budget_features())
        branch = list(policy.control_jepa.parameters()) if policy.control_jepa else []
        speechless = ChameleonPolicy(preset(name), replace(budget_features(), language=None), with_control_jepa=False)
        state = policy.initial_state(1)
        result[name] = {
            **asdict(parameter_budget(policy)),
            "trainable_without_language": parameter_budget(speechless).trainable,
            "control_jepa": sum(p.numel() for p in branch),
            "control_jepa_trained": sum(p.numel() for p in branch if p.requires_grad),
            "state_bytes": state.nbytes,
            "state_tensor_bytes": {tensor_name: tensor.nbytes for tensor_name, tensor in state.tensors().items()},
        }
    return result


if __name__ == "__main__":
    write_result(RESULT, sizes(), command="python -m benchmarks.parameters", seeds=[])
