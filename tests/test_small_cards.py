"""Kernels compiled for other cards than this machine's fit these cards."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

if importlib.util.find_spec("triton") is None:
    pytest.skip("Triton is not installed", allow_module_level=True)

ROOT = Path(__file__).parent.parent
SPILLED = 2048
"""Bytes per thread; a kernel that spills more keeps something in registers by mistake."""


def compiled(out: Path, card: str, preset: str) -> dict:
    """Compile in another process, since Triton's interpreter may be on in this one."""
    clean = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [
        sys.executable,
        "-m",
        "benchmarks.small_cards",
        "--cards",
        card,
        "--presets",
        preset,
        "--out",
        str(out),
    ]
    subprocess.run(command, cwd=ROOT, env=clean, check=True)
    (row,) = json.loads(out.read_text())["result"]["rows"]
    return row


@pytest.mark.slow
@pytest.mark.parametrize(
    ("card", "preset"),
    [("sm_86", "paper"), ("sm_89", "paper"), ("sm_120", "paper"), ("sm_86", "small")],
)
def test_the_largest_kernel_fits(card: str, preset: str, tmp_path: Path) -> None:
    row = compiled(tmp_path / "needs.json", card, preset)
    assert row["card_kib"] == 99
    assert 0 < row["shared_kib"] <= row["card_kib"], row["largest"]
    assert 0 < row["registers"] <= 255 and row["spilled_bytes"] <= SPILLED, row["most_spilled"]
    assert {"_scan_gradients_through_states", "_group_norm_backward", "_attention_forward"} <= set(
        row["kernels"]
    )
    assert ("_advance" in row["kernels"]) == (preset == "paper"), (
        "the Euler sampler is made for the paper's head"
    )


def test_published_needs_fit() -> None:
    rows = json.loads((ROOT / "docs/results/small-cards.json").read_text())["result"]["rows"]
    assert {"sm_86", "sm_89", "sm_120", "sm_90"} <= {row["card"] for row in rows}
    for row in rows:
        assert row["shared_kib"] <= row["card_kib"], row
        assert row["spilled_bytes"] <= SPILLED or row["card_kib"] > 99, row


def test_an_unknown_card_is_refused() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "benchmarks.small_cards", "--cards", "sm_1"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 1 and "there is no card 'sm_1'; choose from sm_86" in result.stderr
