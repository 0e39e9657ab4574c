"""Memory before training, and training to use it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from benchmarks import delayed_recall
from chameleon_policy import ChameleonPolicy, Features, ObjectSlots, Observation, preset
from chameleon_policy.policy.ssm import SelectiveSSM, SSMState


class CurrentTokens(nn.Module):
    """State-space layer without a memory: its output is its input."""

    def __init__(self, replaced: SelectiveSSM) -> None:
        super().__init__()
        self.initial_state = replaced.initial_state

    def forward(
        self, sequence: torch.Tensor, state: SSMState | None, *, keep_state: bool
    ) -> tuple[torch.Tensor, SSMState]:
        return sequence, self.initial_state(*sequence.shape[:-2]) if state is None else state


def train_until_learned(policy: ChameleonPolicy, steps: int) -> list[delayed_recall.Progress]:
    history = []
    for progress in delayed_recall.train(policy, steps=steps, seed=0):
        history.append(progress)
        if [p.accuracy > 0.97 for p in history[-2:]] == [True, True]:
            break
    return history


@pytest.mark.slow
def test_delayed_recall_is_learned_and_not_without_memory() -> None:
    torch.manual_seed(0)
    policy = ChameleonPolicy(delayed_recall.config(), delayed_recall.FEATURES)
    history = train_until_learned(policy, steps=200)
    assert [p.accuracy > 0.97 for p in history[-2:]] == [True, True], history

    torch.manual_seed(0)
    memoryless = ChameleonPolicy(delayed_recall.config(), delayed_recall.FEATURES)
    for layer in memoryless.memory:
        layer.propagation.slow = CurrentTokens(layer.propagation.slow)
        layer.consolidation.fast = CurrentTokens(layer.consolidation.fast)
    scores = [p.accuracy for p in train_until_learned(memoryless, steps=200)]
    assert len(scores) == 8
    # Each score is a share of 64 guesses between two answers: four standard deviations.
    assert all(0.25 < score < 0.75 for score in scores), scores


def linear_probe(features: torch.Tensor, label: torch.Tensor) -> float:
    """Return the held-out accuracy of ridge regression, features (episodes D) to four labels."""
    features = ((features - features.mean(0)) / features.std(0)).double()
    target = nn.functional.one_hot(label, 4).double() - 0.25
    train, test = slice(0, 2 * len(label) // 3), slice(2 * len(label) // 3, None)
    ridge = 0.6 * torch.eye(features.shape[1], dtype=torch.float64)
    weights = torch.linalg.solve(
        features[train].T @ features[train] + ridge, features[train].T @ target[train]
    )
    return ((features[test] @ weights).argmax(1) == label[test]).double().mean().item()


def test_untrained_trace_holds_a_cue_for_an_episode() -> None:
    """A cue is visible for five steps; 250 steps later its token's trace still tells which."""
    torch.manual_seed(1)
    episodes, time = 96, 256
    features = Features(objects=ObjectSlots(count=3, size=4), proprioception=4, action=1, horizon=1)
    policy = ChameleonPolicy(preset("nano"), features, with_control_jepa=False)
    cue = torch.arange(episodes) % 4
    objects = 0.5 * torch.randn(1, 1, 3, 4) + 0.05 * torch.randn(episodes, time, 3, 4)
    objects[:, 2:7, 0] += 2 * nn.functional.one_hot(cue, 4)[:, None]
    observation = Observation(proprioception=0.05 * torch.randn(episodes, time, 4), objects=objects)
    with torch.no_grad():
        outputs, _ = policy.remember(
            policy.event_tokens(observation), policy.initial_state(episodes)
        )
    assert linear_probe(outputs[0].traces[:, -1, 0], cue) > 0.6
    assert linear_probe(outputs[0].bound[:, -1, 0], cue) < 0.45


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_delayed_recall_is_learned_from_other_seeds(seed: int) -> None:
    torch.manual_seed(seed)
    policy = ChameleonPolicy(delayed_recall.config(), delayed_recall.FEATURES)
    history = train_until_learned(policy, steps=600)
    assert history[-1].accuracy > 0.97, history
