"""Imports point one way, and the core stays light."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import chameleon_policy

PACKAGE = Path(chameleon_policy.__file__).parent


def test_the_policy_knows_nothing_of_the_rest() -> None:
    """The policy is plain PyTorch and imports nothing else; its fused twins import the policy and no other room."""
    for room, allowed in (("policy", ("policy",)), ("kernels", ("kernels", "policy"))):
        for path in (PACKAGE / room).rglob("*.py"):
            code = path.read_text().replace("from chameleon_policy import ", "from chameleon_policy.")
            for module in re.findall(r"(?:from|import) chameleon_policy\.?(\w*)", code):
                assert module in allowed, f"{path.name} imports {module}"


def test_the_benchmark_knows_nothing_of_the_policy() -> None:
    for room in ("camo", "data"):
        for path in (PACKAGE / room).rglob("*.py"):
            assert not re.search(r"chameleon_policy\.(policy|train|evaluate)\b", path.read_text()), path
            assert not re.search(r"^\s*(import|from) torch", path.read_text(), re.MULTILINE), path


@pytest.mark.parametrize(
    ("code", "unwanted"),
    [
        ("from chameleon_policy import ChameleonPolicy", {"transformers", "huggingface_hub", "mujoco", "gymnasium", "av"}),
        ("import chameleon_policy.camo.recording", {"torch", "transformers"}),
        ("import chameleon_policy.cli", {"torch", "mujoco", "av"}),
    ],
)
def test_nobody_waits_for_what_they_do_not_use(code: str, unwanted: set[str]) -> None:
    code = f"import sys; {code}; print(sorted({unwanted} & sys.modules.keys()))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


READING_PATH = (
    "visual", "event_tokens", "attention", "ssm", "memory", "control_jepa", "action_flow", "chameleon"
)  # fmt: skip


def test_the_model_is_read_in_an_hour() -> None:
    """The files of the reading path stand in the room's docstring in this order, and have under 1,200 lines together."""
    room = PACKAGE / "policy"
    assert " -> ".join(READING_PATH) in " ".join((room / "__init__.py").read_text().split())
    assert sum(len((room / f"{name}.py").read_text().splitlines()) for name in READING_PATH) < 1200


def test_the_model_has_no_code_for_its_kernels() -> None:
    for path in (PACKAGE / "policy").rglob("*.py"):
        assert not re.search(r"\bkernels\b|triton|__class__", path.read_text()), path


def test_the_packages_names_are_the_policys() -> None:
    assert chameleon_policy.__all__ == [*chameleon_policy.policy.__all__, "FastControl", "fuse"]
    assert all(getattr(chameleon_policy, name) is not None for name in chameleon_policy.__all__)
    assert chameleon_policy.ChameleonPolicy is chameleon_policy.policy.ChameleonPolicy
    with pytest.raises(AttributeError, match="no attribute 'Chamaeleon'"):
        _ = chameleon_policy.Chamaeleon
