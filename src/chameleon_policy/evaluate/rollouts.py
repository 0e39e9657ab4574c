"""Closed-loop rollouts: one batched policy, many environments, a memory of every control step.

Reproducible: the noise of every chunk follows from the seed of its episode, and the policy always
computes batches of the same size, because the last bits of a result depend on the batch size and a
closed loop amplifies them. Another `parallel`, or other hardware, gives other rollouts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from chameleon_policy.evaluate.executor import ChunkedPolicy, Executor, make_executor
from chameleon_policy.evaluate.pool import Begin, EnvPool, Tick
from chameleon_policy.policy import Features, Observation
from chameleon_policy.suite import Answer, EpisodeResult


class Policy(ChunkedPolicy, Protocol):
    """A policy that can be evaluated: its memory is a value."""

    @property
    def features(self) -> Features:
        """What the policy observes and how it acts."""

    @property
    def device(self) -> torch.device:
        """The device on which the policy computes."""

    def initial_state(self, batch_size: int = 1) -> Any:
        """Return the memory before the first observation.

        It can be indexed, and its `put` replaces the memory of some episodes.
        """

    def observe(self, observation: Observation, state: Any) -> Any:
        """Return the memory after one control step."""

    def act(self, state: Any, *, steps: int | None, source: Tensor) -> Tensor:
        """Return chunks of actions (B H A) in the robot's units; `source` is the initial noise."""


@dataclass(frozen=True, eq=False)
class Rollout:
    """An episode that a policy played."""

    played: EpisodeResult
    actions: np.ndarray
    """The actions that were carried out (T A): with the seed, enough to replay the episode."""


AtDecision = Callable[[Any, list[int]], Any]
"""Takes the memory of all slots, and the slots in which a decision is due that the policy has not
observed yet; returns the memory to go on with.
"""


def roll_out(
    policy: Policy,
    pool: EnvPool,
    seeds: Sequence[int],
    *,
    steps: int | None = None,
    executed: int | None = None,
    instruction: Tensor | None = None,
    answers: Sequence[Answer] | None = None,
    at_decision: AtDecision = lambda state, slots: state,
    progress: Callable[[int], object] = lambda done: None,
) -> list[Rollout]:
    """Play one episode for every seed and return the rollouts in the order of the seeds.

    The executor of a slot is cleared when its environment says that a decision is due: no
    action planned before the decision may be carried out after it.

    Args:
        policy: The policy to evaluate.
        pool: The environments; each of its slots plays one episode at a time.
        seeds: Seeds of the episodes.
        steps: Sampling steps of a chunk (default: the policy's own number).
        executed: Actions of a chunk to carry out (default: the policy's own number).
        instruction: Embedding of the task's instruction, for policies with language.
        answers: Answers of the episodes (default: the seeds decide them).
        at_decision: For probes: called with the memory before decisions are observed.
        progress: Called with the number of finished episodes after each of them.
    """
    executed = policy.executed if executed is None else executed
    if not 1 <= executed <= policy.features.horizon:
        raise ValueError(
            f"expected 1 to {policy.features.horizon} actions of a chunk to be executed, "
            f"got {executed}"
        )
    waiting = deque(
        _Episode(index, seed, None if answers is None else answers[index])
        for index, seed in enumerate(seeds)
    )
    slots = [_Slot(policy.features, make_executor(policy, executed)) for _ in range(pool.slots)]
    batch = _Batch(policy, pool, slots)
    rollouts: dict[int, Rollout] = {}
    while batch.start_episodes(waiting):
        for index, rollout in batch.step_environments(at_decision):
            rollouts[index] = rollout
            progress(len(rollouts))
        batch.observe(instruction)
        batch.plan(steps)
    return [rollouts[index] for index in range(len(seeds))]


@dataclass(frozen=True)
class _Episode:
    """An episode to play."""

    index: int
    seed: int
    answer: Answer | None


class _Slot:
    """A slot of the pool: its episode, the last observation, and the executor of its chunks."""

    def __init__(self, features: Features, executor: Executor) -> None:
        self.episode: _Episode | None = None
        self.observation: dict[str, Any] | None = None
        self.executor = executor
        self._actions: list[np.ndarray] = []
        self._order: Begin | None = None
        self._noise_shape = (features.horizon, features.action)
        self._generator = torch.Generator()

    def start(self, episode: _Episode) -> None:
        """Play this episode from now on."""
        self.episode, self._order = episode, (episode.seed, episode.answer)
        self._actions = []
        self.executor.clear()
        self._generator.manual_seed(episode.seed)

    @property
    def chunk_due(self) -> bool:
        """Whether the next action of the episode needs a new chunk."""
        return self.episode is not None and self.executor.chunk_due

    def next_order(self) -> Begin | np.ndarray:
        """Return how the environment goes on: with the beginning of an episode, or an action."""
        if self._order is not None:
            begin, self._order = self._order, None
            return begin
        self._actions.append(self.executor.next_action())
        return self._actions[-1]

    def receive(self, tick: Tick) -> tuple[int, Rollout] | None:
        """Take in a tick of the environment; return index and rollout of an episode that ended."""
        self.observation = tick.observation
        if tick.decision:
            self.executor.clear()
        if tick.played is None or self.episode is None:
            return None
        index, self.episode = self.episode.index, None
        return index, Rollout(tick.played, np.asarray(self._actions, np.float32))

    def draw_noise(self) -> Tensor:
        """Return the noise of the next chunk (H A); zeros, and nothing is drawn, if none is due."""
        if not self.chunk_due:
            return torch.zeros(self._noise_shape)
        return torch.randn(self._noise_shape, generator=self._generator)


class _Batch:
    """The slots of a pool and the memory of a policy, which has one entry for every slot."""

    def __init__(self, policy: Policy, pool: EnvPool, slots: Sequence[_Slot]) -> None:
        self._policy, self._pool, self._slots = policy, pool, slots
        self._state = policy.initial_state(len(slots))

    def start_episodes(self, waiting: deque[_Episode]) -> bool:
        """Start waiting episodes in free slots; return whether any episode is being played."""
        started = []
        for number, slot in enumerate(self._slots):
            if slot.episode is None and waiting:
                slot.start(waiting.popleft())
                started.append(number)
        if started:
            self._state = self._state.put(started, self._policy.initial_state(len(started)))
        return any(slot.episode is not None for slot in self._slots)

    def step_environments(self, at_decision: AtDecision) -> list[tuple[int, Rollout]]:
        """Begin or step the environments; return indices and rollouts of episodes that ended."""
        orders = {
            number: slot.next_order()
            for number, slot in enumerate(self._slots)
            if slot.episode is not None
        }
        ticks = self._pool.advance(orders)
        deciding = [
            number for number, tick in ticks.items() if tick.decision and tick.played is None
        ]
        if deciding:
            self._state = at_decision(self._state, deciding)
        ended = [self._slots[number].receive(tick) for number, tick in ticks.items()]
        return [each for each in ended if each is not None]

    def observe(self, instruction: Tensor | None) -> None:
        """Take the last observations of all slots into the memory."""
        # a slot that was never used needs an observation, too: the size of the batch is fixed
        any_other = next(slot.observation for slot in self._slots if slot.observation is not None)
        observations = [slot.observation or any_other for slot in self._slots]
        self._state = self._policy.observe(
            _stack(observations, instruction, self._policy.device), self._state
        )

    def plan(self, steps: int | None) -> None:
        """Give a chunk to every executor that needs one."""
        due = [number for number, slot in enumerate(self._slots) if slot.chunk_due]
        if not due:
            return
        noise = torch.stack([slot.draw_noise() for slot in self._slots]).to(self._policy.device)
        chunks = self._policy.act(self._state, steps=steps, source=noise).cpu().numpy()
        for number in due:
            self._slots[number].executor.add(chunks[number])


def _stack(
    observations: Sequence[dict[str, Any]], instruction: Tensor | None, device: torch.device
) -> Observation:
    """Return observations of environments as one batch on a device."""

    def stack(arrays: list[np.ndarray]) -> Tensor:
        return torch.from_numpy(np.stack(arrays)).to(device)

    first = observations[0]
    return Observation(
        proprioception=stack([each["proprioception"] for each in observations]),
        images={
            view: stack([each["images"][view] for each in observations])
            for view in first.get("images", {})
        },
        objects=stack([each["objects"] for each in observations]) if "objects" in first else None,
        instruction=None
        if instruction is None
        else instruction.to(device).expand(len(observations), -1),
    )
