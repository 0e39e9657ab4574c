"""Parameter counts and memory sizes of every preset, for the tables in the docs: `python -m benchmarks.parameters`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from chameleon_policy import PRESETS, ChameleonPolicy, parameter_budget, preset
from chameleon_policy.policy.presets import budget_features
from chameleon_policy.report.provenance import write_result

RESULT = Path("docs/results/parameters.json")


def sizes() -> dict[str, Any]:
    """Budget and bytes of one robot's memory, by preset, on the paper's features."""
    result = {}
    for name in PRESETS:
        policy = ChameleonPolicy(preset(name), budget_features(), with_control_jepa=False)
        result[name] = {**asdict(parameter_budget(policy)), "state_bytes": policy.initial_state(1).nbytes}
    return result


if __name__ == "__main__":
    write_result(RESULT, sizes(), command="python -m benchmarks.parameters", seeds=[])
