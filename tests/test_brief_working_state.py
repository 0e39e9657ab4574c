"""Policies whose fast layer forgets: its state changes nothing, all other state does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks import brief_working_state
from benchmarks.brief_working_state import KINDS, train_and_score
from chameleon_policy import MemoryState
from chameleon_policy.baselines import METHODS
from chameleon_policy.camo.recording import Recording
from chameleon_policy.evaluate.evaluation import FIRST_SEED
from chameleon_policy.policy import ChameleonPolicy
from chameleon_policy.recorder import record
from examples import STATE_FEATURES, make_observation, nano


def with_another(state: MemoryState, other: MemoryState, part: str) -> MemoryState:
    """Return the memory with one part of every layer from another one."""
    layers = tuple(
        replace(layer, **{part: getattr(source, part)})
        for layer, source in zip(state.layers, other.layers, strict=True)
    )
    return replace(state, layers=layers)


@pytest.mark.parametrize("kind", [ChameleonPolicy, *KINDS.values()])
def test_the_fast_layer_forgets_and_the_slow_one_does_not(kind: type[ChameleonPolicy]) -> None:
    torch.manual_seed(0)
    policy = kind(nano(), STATE_FEATURES).eval()
    states = []
    for episode in range(2):
        state = policy.initial_state(1)
        for t in range(5):
            state = policy.observe(
                make_observation(STATE_FEATURES, 1, seed=10 * episode + t), state
            )
        states.append(state)
    now = make_observation(STATE_FEATURES, 1, seed=99)
    usual = policy.observe(now, states[0]).working
    other = {
        part: policy.observe(now, with_another(*states, part)).working for part in ("slow", "fast")
    }
    assert torch.equal(other["fast"], usual) == (kind is not ChameleonPolicy)
    assert not torch.equal(other["slow"], usual)


def test_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, kind in KINDS.items():
        monkeypatch.setitem(METHODS, name, kind)  # other tests must not meet them
    record(
        Recording(task="clean-plate", episodes=6, observation="state"), tmp_path / "data", workers=1
    )
    monkeypatch.setattr(brief_working_state, "DATA", tmp_path / "data")
    row = train_and_score("brief-similarity", {"steps": 1}, [FIRST_SEED], tmp_path / "run")
    assert (row["method"], row["steps"], row["episodes"]) == ("brief-similarity", 1, 1)
    assert row["msr"]["count"] == 1
    assert len(row["answers"].split(" ")) == len(row["choices"].split(" ")) == 1
    assert (tmp_path / "run/policy" / "config.json").exists()
