"""A MemoryState is a value: it can be batched, sliced, edited, saved, restored and moved."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import safetensors.torch
import torch

from chameleon_policy import MemoryState
from examples import STATE_FEATURES, make_observation, make_policy, nano


@pytest.fixture
def policy():
    return make_policy()


@pytest.fixture
def state(policy) -> MemoryState:
    state = policy.initial_state(4)
    for t in range(3):
        state = policy.observe(make_observation(STATE_FEATURES, 4, seed=t), state)
    return state


def equal(first: MemoryState, second: MemoryState) -> bool:
    return first.signature == second.signature and all(
        torch.equal(tensor, second.tensors()[name]) for name, tensor in first.tensors().items()
    )


def test_robots_in_a_batch_are_independent(policy, state) -> None:
    alone = policy.initial_state(1)
    for t in range(3):
        observation = make_observation(STATE_FEATURES, 4, seed=t)
        alone = policy.observe(observation.map(lambda tensor: tensor[2:3]), alone)
    torch.testing.assert_close(alone.tensors(), state[2].tensors(), rtol=1e-4, atol=1e-5)


def test_slices_join_to_the_whole(state) -> None:
    assert len(state) == 4
    assert equal(MemoryState.cat([state[0], state[1:3], state[[3]]]), state)
    assert equal(state[-1], state[3:])
    assert equal(state[torch.tensor([True, False, True, False])], state[[0, 2]])
    for two in (np.int64(2), torch.tensor(2), torch.tensor([2]).byte(), [2], slice(2, 3)):
        assert equal(state[two], state[2])
        assert len(state[two]) == 1
    assert len(state[[]]) == 0
    with pytest.raises(IndexError, match="holds 4"):
        state[4]
    for wrong in (True, 1.5, torch.ones(3, dtype=torch.bool)):
        with pytest.raises(IndexError, match="expected an integer"):
            state[wrong]


def test_put_resets_some_robots(policy, state) -> None:
    fresh = state.put([1, 3], policy.initial_state(2))
    assert equal(fresh[[0, 2]], state[[0, 2]])
    assert equal(fresh[[1, 3]], policy.initial_state(2))
    assert fresh.steps.tolist() == [3, 0, 3, 0]
    assert equal(
        state.put(1, policy.initial_state(1)).put(slice(3, 4), policy.initial_state(1)), fresh
    )
    with pytest.raises(ValueError, match="names 2 episodes, the other memory state holds 1"):
        state.put([1, 3], policy.initial_state(1))


def test_put_keeps_the_order(policy, state) -> None:
    other = policy.observe(make_observation(policy.features, 2, seed=5), policy.initial_state(2))
    assert equal(state.put([3, 0], other)[[3, 0]], other)


def test_a_restored_state_continues_bit_for_bit(policy, state, tmp_path) -> None:
    state.save(tmp_path / "memory.safetensors")
    restored = MemoryState.load(tmp_path / "memory.safetensors")
    assert equal(restored, state)
    observation = make_observation(STATE_FEATURES, 4, seed=9)
    assert equal(policy.observe(observation, restored), policy.observe(observation, state))


def test_it_can_be_edited(policy, state) -> None:
    edited = dataclasses.replace(state, working=torch.zeros_like(state.working))
    assert not torch.equal(policy.act(edited, source="zero"), policy.act(state, source="zero"))
    copy = state.clone()
    copy.working.zero_()
    assert state.working.abs().sum() > 0


def test_it_moves_between_devices(state) -> None:
    assert state.to("meta").working.device.type == "meta"
    if torch.cuda.is_available():
        assert equal(state.to("cuda").to("cpu"), state)


def test_nbytes_is_the_size_of_its_tensors(policy, state) -> None:
    assert state.nbytes == sum(t.numel() * t.element_size() for t in state.tensors().values())
    assert state.nbytes == 4 * policy.initial_state(1).nbytes


def test_it_holds_no_references_to_its_origin(policy, state) -> None:
    """Every tensor owns exactly its storage, after a control step and after a sequence."""
    observation = make_observation(STATE_FEATURES, 4, 50)
    with torch.no_grad():
        _, scanned = policy.remember(policy.event_tokens(observation), state)
    for candidate in (state, scanned):
        for name, tensor in candidate.tensors().items():
            assert tensor.untyped_storage().nbytes() == tensor.nbytes, name


def test_bad_files_are_refused(state, tmp_path) -> None:
    path = tmp_path / "memory.safetensors"
    with pytest.raises(FileNotFoundError, match="no memory state at"):
        MemoryState.load(path)
    state.save(path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match="truncated or damaged"):
        MemoryState.load(path)
    safetensors.torch.save_file(
        {"x": torch.zeros(1)}, path, metadata={"format": "chameleon-memory-state"}
    )
    with pytest.raises(ValueError, match="no complete memory state: 'working' is missing"):
        MemoryState.load(path)
    make_policy().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="no memory state"):
        MemoryState.load(tmp_path / "model.safetensors")


def test_states_of_different_architectures_do_not_mix(state) -> None:
    other = make_policy(dataclasses.replace(STATE_FEATURES, horizon=8)).initial_state(1)
    with pytest.raises(ValueError, match="another architecture"):
        MemoryState.cat([state, other])
    with pytest.raises(ValueError, match="different architectures"):
        state.put([0], other)
    config = nano()
    unlimited = make_policy(
        config=dataclasses.replace(config, fast=config.fast.limited(math.inf))
    ).initial_state(1)
    with pytest.raises(ValueError, match="another architecture"):
        MemoryState.cat([make_policy().initial_state(1), unlimited])
