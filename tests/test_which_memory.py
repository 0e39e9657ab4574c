"""Emptying one of the two memories at the decision: that part of those robots, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from benchmarks import which_memory
from benchmarks.which_memory import EMPTIED, Emptied
from camo_episodes import wait_until_decision
from chameleon_policy import ChameleonPolicy, Features, MemoryState, ObjectSlots
from chameleon_policy.baselines.flow_matching import FlowMatchingPolicy
from chameleon_policy.baselines.similarity import SimilarityPolicy
from chameleon_policy.camo import CamoEnv
from chameleon_policy.evaluate.evaluation import FIRST_SEED
from examples import STATE_FEATURES, make_observation, nano

CLEAN_PLATE = Features(
    objects=ObjectSlots(count=5, size=7), proprioception=10, action=10, horizon=8
)


@pytest.mark.parametrize("method", [ChameleonPolicy, SimilarityPolicy])
@pytest.mark.parametrize("emptied", EMPTIED)
def test_those_parts_of_those_robots_are_empty(method: type[ChameleonPolicy], emptied: str) -> None:
    policy = method(nano(), STATE_FEATURES).eval()
    state = policy.initial_state(3)
    for t in range(4):
        state = policy.observe(make_observation(STATE_FEATURES, 3, seed=t), state)
    after = Emptied(policy, EMPTIED[emptied]).at_decision(state, [0, 2])
    before, empty = state.tensors(), policy.initial_state(3).tensors()
    parts = {name: name.split(".")[2] for name in before if name.startswith("layers.")}
    assert set(parts.values()) == {"slow", "fast"}
    for name, tensor in after.tensors().items():
        gone = parts.get(name) in EMPTIED[emptied]
        expected = torch.stack(
            [(empty if gone and robot != 1 else before)[name][robot] for robot in range(3)]
        )
        assert torch.equal(tensor, expected), name
        assert name not in parts or not torch.equal(before[name], empty[name]), name


def test_every_part_is_emptied_when_the_robot_may_act(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ChameleonPolicy(nano(), CLEAN_PLATE).save_pretrained(tmp_path)
    decisions: list[tuple[tuple[str, ...], list[int]]] = []
    empty = Emptied.at_decision

    def noted(self: Emptied, state: MemoryState, robots: Sequence[int]) -> MemoryState:
        decisions.append((tuple(self._parts), state.steps[list(robots)].tolist()))
        return empty(self, state, robots)

    monkeypatch.setattr(Emptied, "at_decision", noted)
    out = tmp_path / "out.json"
    which_memory.main(
        (tmp_path,), out, ("clean-plate",), episodes=1, steps=1, parallel=1, workers=0, device="cpu"
    )
    rows = json.loads(out.read_text())["result"]["rows"]
    assert [(row["method"], row["task"], row["emptied"], row["episodes"]) for row in rows] == [
        ("chameleon", "clean-plate", emptied, 1) for emptied in EMPTIED
    ]
    env = CamoEnv("clean-plate", observation="state")
    env.reset(seed=FIRST_SEED)
    wait_until_decision(env)
    # t_d is also the number of observations before it; the one at t_d is still to come.
    assert decisions == [(parts, env.decisions) for parts in EMPTIED.values()]


def test_a_task_is_required(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least one run and one --task"):
        which_memory.main((tmp_path,), tmp_path / "out.json", ())


def test_a_policy_without_these_memories_is_refused(tmp_path: Path) -> None:
    FlowMatchingPolicy(nano(), CLEAN_PLATE).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="only Chameleon and its ablations"):
        which_memory.main(
            (tmp_path,),
            tmp_path / "out.json",
            ("clean-plate",),
            episodes=1,
            workers=0,
            device="cpu",
        )
