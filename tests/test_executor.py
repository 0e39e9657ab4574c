"""Executors against plain loops, and how a rollout uses them."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch

from camo_episodes import wait_until_decision
from chameleon_policy import Features, MemoryState, ObjectSlots, Observation, Range, Statistics
from chameleon_policy.baselines.act import ACTPolicy
from chameleon_policy.baselines.lstm import RecurrentPolicy
from chameleon_policy.camo.settings import CamoSettings
from chameleon_policy.evaluate.executor import Executor, TemporalEnsemble, make_executor
from chameleon_policy.evaluate.pool import EnvPool
from chameleon_policy.evaluate.rollouts import roll_out
from chameleon_policy.seeds import evaluation_seed
from examples import STATE_FEATURES, nano

HORIZON = 5
CHUNKS = np.random.default_rng(0).normal(size=(12, HORIZON, 3)).astype(np.float32)


def carry_out(executor: Executor, steps: int, clear_at: int | None = None) -> tuple[Any, list[int]]:
    """Carry out CHUNKS[t] planned at step t; return all actions, and the steps of their chunks."""
    actions, planned = [], []
    for step in range(steps):
        if step == clear_at:
            executor.clear()
        if executor.chunk_due:
            executor.add(CHUNKS[step])
            planned.append(step)
        actions.append(executor.next_action())
    return np.stack(actions), planned


def test_a_queue_carries_out_the_first_actions_of_each_chunk() -> None:
    actions, planned = carry_out(Executor(3), 8, clear_at=4)
    assert planned == [0, 3, 4, 7]
    expected = [CHUNKS[0, 0], CHUNKS[0, 1], CHUNKS[0, 2], CHUNKS[3, 0]]
    expected += [CHUNKS[4, 0], CHUNKS[4, 1], CHUNKS[4, 2], CHUNKS[7, 0]]
    np.testing.assert_array_equal(actions, expected)


@pytest.mark.parametrize("clear_at", [None, 6])
def test_the_temporal_ensemble_is_that_of_act(clear_at: int | None) -> None:
    """All predictions for a step, the oldest first, are weighted by exp(-m i)."""
    actions, planned = carry_out(TemporalEnsemble(1, 0.01), 12, clear_at)
    assert planned == list(range(12))
    for step in range(12):
        first = max(0, step - HORIZON + 1)
        if clear_at is not None and step >= clear_at:
            first = max(first, clear_at)
        predictions = [CHUNKS[made, step - made] for made in range(first, step + 1)]
        weights = [math.exp(-0.01 * i) for i in range(len(predictions))]
        mean = sum(w * p for w, p in zip(weights, predictions, strict=True)) / sum(weights)
        np.testing.assert_allclose(actions[step], mean, rtol=1e-5, atol=1e-6)


def test_an_ensemble_may_carry_out_several_actions_of_a_chunk() -> None:
    actions, planned = carry_out(TemporalEnsemble(2, 0.01), 8)
    assert planned == [0, 2, 4, 6]
    weights = [math.exp(0.03), math.exp(0.01)]  # the chunks of steps 2 and 4 are 3 and 1 steps old
    mean = (weights[0] * CHUNKS[2, 3] + weights[1] * CHUNKS[4, 1]) / sum(weights)
    np.testing.assert_allclose(actions[5], mean, rtol=1e-5, atol=1e-6)


def test_tensors_are_carried_out_like_arrays() -> None:
    executor = TemporalEnsemble(1, 0.01)
    for step in range(3):
        executor.add(torch.from_numpy(CHUNKS[step]))
        action = executor.next_action()
    np.testing.assert_allclose(
        action.numpy(), carry_out(TemporalEnsemble(1, 0.01), 3)[0][-1], rtol=1e-6
    )


def test_policies_choose_their_executor() -> None:
    act, lstm = ACTPolicy(nano(), STATE_FEATURES), RecurrentPolicy(nano(), STATE_FEATURES)
    assert type(make_executor(act)) is TemporalEnsemble
    assert type(make_executor(lstm)) is Executor
    with pytest.raises(ValueError, match="at least 1 action"):
        make_executor(lstm, 0)


def act_policy() -> ACTPolicy:
    """Return an untrained ACT whose actions stay near the table."""
    torch.manual_seed(0)
    low, high = (0.3, -0.3, 0.1, *[-1.0] * 6, 0.0), (0.6, 0.3, 0.4, *[1.0] * 7)
    features = Features(
        objects=ObjectSlots(count=5, size=7), proprioception=10, action=10, horizon=HORIZON
    )
    return ACTPolicy(nano(), features, Statistics(action=Range(low=low, high=high))).eval()


def test_a_rollout_of_act_is_its_ensemble_cleared_at_the_decision() -> None:
    """Compare with a table of all chunks over time, in an environment stepped by hand."""
    policy, settings = act_policy(), CamoSettings(task="clean-plate", observation="state")
    with EnvPool(settings, 1, 0) as pool:
        (rollout,) = roll_out(policy, pool, [evaluation_seed(0)])
    with settings.make_env() as env:
        seen, info = env.reset(seed=evaluation_seed(0))
        chunks: list[np.ndarray] = []
        cleared = 0
        for step, action in enumerate(rollout.actions):
            if info["decision"]:
                cleared = step
            state = policy.observe(Observation.single(**seen), policy.initial_state())
            chunks.append(policy.act(state, source="zero")[0].numpy())
            start = max(step - HORIZON + 1, cleared)
            weights = np.exp(0.01 * np.arange(step - start, -1, -1))[:, None]
            predictions = np.stack([chunks[made][step - made] for made in range(start, step + 1)])
            mean = (weights * predictions).sum(0) / weights.sum()
            np.testing.assert_allclose(action, mean, rtol=1e-4, atol=1e-5)
            seen, _, _, _, info = env.step(action)
        assert len(env.decisions) == 1


def test_at_decision_is_called_before_the_decision_is_observed() -> None:
    policy, calls = act_policy(), []

    def note(state: MemoryState, slots: list[int]) -> MemoryState:
        calls.append((slots, state.steps.tolist()))
        return dataclasses.replace(state, steps=state.steps + 1000)

    settings = CamoSettings(task="clean-plate", observation="state")
    with EnvPool(settings, 1, 0) as pool:
        roll_out(policy, pool, [evaluation_seed(0), evaluation_seed(1)], at_decision=note)
    assert len(calls) == 2
    for seed, (slots, steps) in enumerate(calls):
        with settings.make_env() as env:
            env.reset(seed=evaluation_seed(seed))
            wait_until_decision(env)
            assert (slots, steps) == ([0], env.decisions)
