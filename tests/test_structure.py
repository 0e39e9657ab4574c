"""Imports point one way, and the core stays light."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import chameleon_policy

PACKAGE = Path(chameleon_policy.__file__).parent


def test_the_policy_knows_nothing_of_the_rest() -> None:
    for path in (PACKAGE / "policy").rglob("*.py"):
        for module in re.findall(r"(?:from|import) (chameleon_policy\S*)", path.read_text()):
            assert module.startswith("chameleon_policy.policy"), f"{path.name} imports {module}"


def test_importing_the_package_loads_no_extra() -> None:
    extras = {"transformers", "huggingface_hub", "torchvision"}
    code = f"import chameleon_policy, sys; print(sorted({extras} & sys.modules.keys()))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
