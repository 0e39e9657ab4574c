"""The parameter budget of the paper, to its decimal, and the command that prints it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import asdict

import pytest

from chameleon_policy import ChameleonPolicy, parameter_budget, preset
from chameleon_policy.policy.presets import budget_features
from examples import IMAGE_FEATURES, STATE_FEATURES

PAPER = {
    "visual": "22.9",
    "memory": "20.3",
    "memory_ssm": "5.1",
    "memory_rest": "15.2",
    "head": "23.1",
    "projections": "0.4",
    "trainable": "66.7",
}


def chameleon(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "chameleon_policy.cli", *arguments], capture_output=True, text=True
    )


def test_params_json_agrees_with_the_paper_and_adds_up() -> None:
    result = chameleon("params", "--json")
    assert result.returncode == 0, result.stderr
    counts = json.loads(result.stdout)
    assert all(isinstance(count, int) for count in counts.values())
    assert {key: f"{count / 1e6:.1f}" for key, count in counts.items()} == PAPER
    assert (
        counts["visual"] + counts["memory"] + counts["head"] + counts["projections"]
        == counts["trainable"]
    )
    assert counts["memory_ssm"] + counts["memory_rest"] == counts["memory"]
    # Counted by hand from the architecture: two trunks with projections; per layer slow and fast
    # SSM, and the rest.
    assert counts["visual"] == 2 * (11_176_512 + 512 * 512 + 512)
    assert counts["memory_ssm"] == 2 * (925_976 + 1_620_336)
    assert counts["memory_rest"] == 15_240_192


def test_params_prints_the_papers_budget_and_ours() -> None:
    result = chameleon("params")
    assert result.returncode == 0, result.stderr
    for key, millions in PAPER.items():
        assert re.search(
            rf"\b{re.escape(millions)} │\s+{re.escape(millions)} │\s+yes", result.stdout
        ), (
            key,
            result.stdout,
        )
    assert "no " not in result.stdout.replace("null token", "")


def test_the_sizes_of_the_other_presets() -> None:
    def trainable(name: str, features) -> int:
        return parameter_budget(
            ChameleonPolicy(preset(name), features, with_control_jepa=False)
        ).trainable

    assert trainable("small", budget_features()) <= 8_000_000
    assert 400_000 < trainable("nano", STATE_FEATURES) < 650_000
    assert 400_000 < trainable("nano", IMAGE_FEATURES) < 650_000


def test_the_training_branch_is_outside_the_budget() -> None:
    policies = [
        ChameleonPolicy(preset("nano"), STATE_FEATURES, with_control_jepa=jepa)
        for jepa in (True, False)
    ]
    assert asdict(parameter_budget(policies[0])) == asdict(parameter_budget(policies[1]))
    assert sum(p.numel() for p in policies[0].parameters()) > sum(
        p.numel() for p in policies[1].parameters()
    )


def test_the_command_line_names_what_it_knows(tmp_path) -> None:
    result = chameleon("params", "huge")
    assert result.returncode != 0
    assert "paper" in result.stderr
    result = chameleon("demo", "--demonstrations", "0", "--out", str(tmp_path / "demo"))
    assert result.returncode == 2
    assert "episodes must be at least 1" in result.stderr
    assert "Traceback" not in result.stderr
    with pytest.raises(ValueError, match="paper, small, nano"):
        preset("huge")
