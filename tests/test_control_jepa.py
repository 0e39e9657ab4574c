"""Control-JEPA: the objective by hand, no gradient to its target, no weights in the export."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
import torch.nn.functional as F

from chameleon_policy.policy import saving
from examples import STATE_FEATURES, make_batch, make_policy, nano


def test_matches_a_loop_over_episodes_times_and_horizons() -> None:
    config = nano(horizons=(1, 4, 32), horizon_weights=(1.0, 0.5, 0.25))
    policy = make_policy(config=config, dtype=torch.float64)
    jepa, lengths, time = policy.control_jepa, [9, 3], 9
    working = torch.randn(2, time, 64, dtype=torch.float64)
    bound = torch.randn(2, time, 5, 64, dtype=torch.float64)
    valid = torch.arange(time) < torch.tensor(lengths)[:, None]
    alignment, variance = jepa(working, bound, valid)

    contexts = jepa.target(bound)
    weighted, weights, hinges = 0.0, 0.0, []
    for k, (horizon, weight) in enumerate(zip((1, 4, 32), (1.0, 0.5, 0.25), strict=True)):
        losses, predictions = [], []
        for b, length in enumerate(lengths):
            for t in range(length - horizon):
                predicted = jepa.predictor(torch.cat([working[b, t], jepa.horizon_tokens[k]]))
                losses.append(F.smooth_l1_loss(predicted, contexts[b, t + horizon]))
                predictions.append(predicted)
        if losses:  # no episode reaches horizon 32
            weighted = weighted + weight * torch.stack(losses).mean()
            weights += weight
            spread = torch.stack(predictions).var(0, unbiased=False)
            hinges.append(F.relu(1 - (spread + 1e-4).sqrt()).mean())
    torch.testing.assert_close(alignment, weighted / weights)
    torch.testing.assert_close(variance, torch.stack(hinges).mean())


def test_the_loss_is_that_of_the_last_layer() -> None:
    """Its inputs are the last layer's bound tokens and working state."""
    policy = make_policy(config=dataclasses.replace(nano(), layers=2), dtype=torch.float64).eval()
    batch = make_batch(STATE_FEATURES, 2, 9)
    observation = batch.observation.map(torch.Tensor.double)
    batch = dataclasses.replace(batch, actions=batch.actions.double(), observation=observation)
    last = policy.inspect(batch.observation).layers[-1]
    alignment, variance = policy.control_jepa(last.working, last.bound, batch.valid)
    parts = policy.loss(batch).parts
    torch.testing.assert_close(
        (parts["alignment"], parts["variance"]), (alignment.detach(), variance.detach())
    )


def test_an_episode_too_short_for_every_horizon_is_no_error() -> None:
    policy = make_policy()
    loss = policy.loss(make_batch(STATE_FEATURES, 2, 1))
    assert loss.parts["control_jepa"] == 0
    assert torch.isfinite(loss.total)


def test_the_target_branch_gets_no_gradient_and_gives_none() -> None:
    policy = make_policy()
    bound = torch.randn(2, 12, 5, 64, requires_grad=True)
    working = torch.randn(2, 12, 64, requires_grad=True)
    alignment, variance = policy.control_jepa(working, bound, torch.ones(2, 12, dtype=torch.bool))
    (alignment + variance).backward()
    assert bound.grad is None
    assert working.grad.abs().sum() > 0
    assert all(
        p.grad is None and not p.requires_grad for p in policy.control_jepa.target.parameters()
    )
    assert all(p.grad.abs().sum() > 0 for p in policy.control_jepa.predictor.parameters())


def test_the_target_follows_the_online_branch_by_its_momentum() -> None:
    policy = make_policy()
    online = policy.memory[-1].recall.control_context
    before = copy.deepcopy(policy.control_jepa.target)
    torch.testing.assert_close(dict(before.named_parameters()), dict(online.named_parameters()))
    with torch.no_grad():
        for parameter in online.parameters():
            parameter.add_(torch.randn_like(parameter))
    policy.update_target()
    for new, old, source in zip(
        policy.control_jepa.target.parameters(),
        before.parameters(),
        online.parameters(),
        strict=True,
    ):
        torch.testing.assert_close(new, 0.99 * old + 0.01 * source.detach())


def test_it_is_absent_from_the_exported_policy(tmp_path) -> None:
    policy = make_policy()
    assert any(name.startswith("control_jepa.") for name in policy.state_dict())
    assert not any("jepa" in name for name in saving.exported_weights(policy))
    policy.save_pretrained(tmp_path)
    loaded = type(policy).from_pretrained(tmp_path)
    assert loaded.control_jepa is None
    assert not any("jepa" in name for name in loaded.state_dict())
    with pytest.raises(ValueError, match="with_control_jepa=True"):
        loaded.loss(make_batch(STATE_FEATURES, 1, 4))


def test_a_loaded_policy_can_be_trained_on(tmp_path) -> None:
    policy = make_policy()
    policy.save_pretrained(tmp_path)
    loaded = type(policy).from_pretrained(tmp_path, with_control_jepa=True)
    target, online = loaded.control_jepa.target, policy.memory[-1].recall.control_context
    torch.testing.assert_close(dict(target.named_parameters()), dict(online.named_parameters()))
    loaded.train().loss(make_batch(STATE_FEATURES, 1, 4)).total.backward()
