"""The smallest task that needs memory: a cue at t = 2, a blank for sixty steps, then the answer.

One of two objects lights up for a single step. When the answer is due nothing in the observation
tells which one it was, and the first action must have the right sign. `tests/test_learning.py` asks
that the nano policy learns it, and `benchmarks/initialisation.py` compares ways to initialise the
memory on it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from chameleon_policy import (
    ChameleonPolicy,
    EpisodeBatch,
    Features,
    ObjectSlots,
    Observation,
    PolicyConfig,
    preset,
)

CUE_STEP = 2
BLANK = 60
HORIZON = 4
DECISION_STEP = CUE_STEP + BLANK
SENSOR_NOISE = 0.1
FEATURES = Features(
    objects=ObjectSlots(count=2, size=2), proprioception=1, action=1, horizon=HORIZON
)


def config() -> PolicyConfig:
    """Return the nano preset with all of the action loss on the decision."""
    nano = preset("nano")
    return dataclasses.replace(nano, objective=dataclasses.replace(nano.objective, action_steps=16))


def make_episodes(episodes: int, generator: torch.Generator) -> tuple[EpisodeBatch, Tensor]:
    """Make a balanced batch; return it with the index of each episode's cue."""
    time = DECISION_STEP + HORIZON
    cue = torch.randperm(episodes, generator=generator) % 2
    objects = SENSOR_NOISE * torch.randn(episodes, time, 2, 2, generator=generator)
    objects[torch.arange(episodes), CUE_STEP, cue] += 1
    actions = torch.zeros(episodes, time, 1)
    actions[:, DECISION_STEP:, 0] = (2.0 * cue - 1)[:, None]
    emphasis = torch.zeros(episodes, time)
    emphasis[:, DECISION_STEP] = 1
    batch = EpisodeBatch(
        observation=Observation(proprioception=torch.zeros(episodes, time, 1), objects=objects),
        actions=actions,
        valid=torch.ones(episodes, time, dtype=torch.bool),
        emphasis=emphasis,
    )
    return batch, cue


@torch.no_grad()
def accuracy(policy: ChameleonPolicy, generator: torch.Generator, episodes: int = 64) -> float:
    """Return the share of fresh episodes whose first action at the decision has the right sign."""
    batch, cue = make_episodes(episodes, generator)
    observation = batch.observation.map(lambda tensor: tensor[:, : DECISION_STEP + 1]).to(
        policy.device
    )
    _, state = policy.remember(policy.event_tokens(observation), policy.initial_state(episodes))
    chosen = policy.act(state, steps=8)[:, 0, 0] > 0
    return (chosen.cpu() == (cue == 1)).float().mean().item()


@dataclass(frozen=True)
class Progress:
    """Metrics of a training after some steps."""

    step: int
    action_loss: float
    accuracy: float


def train(
    policy: ChameleonPolicy,
    *,
    steps: int,
    seed: int,
    learning_rate: float = 4e-4,
    check_every: int = 25,
) -> Iterator[Progress]:
    """Train on fresh episodes; yield the accuracy on held-out ones every `check_every` steps."""
    training, held_out = (
        torch.Generator().manual_seed(seed),
        torch.Generator().manual_seed(10_000 + seed),
    )
    optimizer = torch.optim.AdamW(policy.parameters(), lr=learning_rate, weight_decay=1e-6)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 20))
    for step in range(1, steps + 1):
        batch, _ = make_episodes(16, training)
        loss = policy.loss(batch.to(policy.device), check_values=False)
        optimizer.zero_grad()
        loss.total.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 10.0)
        optimizer.step()
        schedule.step()
        policy.update_target()
        if step % check_every == 0:
            yield Progress(step, loss.parts["action"].item(), accuracy(policy, held_out))
