"""Closed-loop rollouts: one batched policy, many environments, the memory ticked on every control
step.

Reproducible: the noise of every chunk follows from the episode's seed, and the policy always
computes a batch of the same size, since the last bits of a result depend on it and a closed loop
amplifies them. Another `parallel`, or other hardware, is another run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from chameleon_policy.evaluate.pool import EnvPool, Tick
from chameleon_policy.policy import Features, Observation
from chameleon_policy.suite import Answer, EpisodeResult


class Policy(Protocol):
    """What can be evaluated: a policy whose memory is a value."""

    @property
    def features(self) -> Features:
        """What it sees and does."""

    @property
    def device(self) -> torch.device:
        """Where it computes."""

    @property
    def executed(self) -> int:
        """Actions of a chunk to carry out before the next one is due."""

    def initial_state(self, batch_size: int = 1) -> Any:
        """Memory before the first observation; it can be indexed, and `put` replaces some of its
        episodes.
        """

    def observe(self, observation: Observation, state: Any) -> Any:
        """Memory after one control step."""

    def drop_plans(self, state: Any, robots: Sequence[int]) -> Any:
        """Memory in which these robots have planned nothing."""

    def act(self, state: Any, *, steps: int | None, source: Tensor) -> Tensor:
        """Chunks of actions B H A, in the robot's units; `source` is the noise to start from."""


@dataclass(frozen=True, eq=False)
class Rollout:
    """An episode that a policy played."""

    played: EpisodeResult
    actions: np.ndarray
    """What it did, (T, A): with the seed, enough to see it again."""


def roll_out(
    policy: Policy,
    pool: EnvPool,
    seeds: Sequence[int],
    *,
    steps: int | None = None,
    executed: int | None = None,
    instruction: Tensor | None = None,
    answers: Sequence[Answer] | None = None,
    progress: Callable[[int], object] = lambda done: None,
) -> list[Rollout]:
    """Play the episodes of these seeds, with these answers or those that the seeds decide; results
    in their order.

    `executed` actions of every chunk are carried out (default: as many as the policy says). A chunk
    that was planned before a decision is dropped there: what is done then must come from what is
    known then.
    """
    executed = policy.executed if executed is None else executed
    if not 1 <= executed <= policy.features.horizon:
        raise ValueError(
            f"expected 1 to {policy.features.horizon} actions of a chunk to be executed, got {executed}"
        )
    waiting, slots = list(enumerate(seeds)), [_Slot(policy.features) for _ in range(pool.slots)]
    results: dict[int, Rollout] = {}
    state = policy.initial_state(len(slots))
    while True:
        idle = [place for place, slot in enumerate(slots) if slot.episode is None]
        begun = {}
        for place in idle[: len(waiting)]:
            episode, seed = waiting.pop(0)
            slots[place].begin(episode, seed)
            begun[place] = seed, None if answers is None else answers[episode]
        if begun:
            state = state.put(list(begun), policy.initial_state(len(begun)))
        playing = [place for place, slot in enumerate(slots) if slot.episode is not None]
        if not playing:
            return [results[episode] for episode in range(len(seeds))]
        order = {
            place: begun[place] if place in begun else slots[place].next_action()
            for place in playing
        }
        ticks = pool.advance(order)
        decided = [place for place, tick in ticks.items() if tick.decision and tick.played is None]
        if decided:
            state = policy.drop_plans(state, decided)
        for place, tick in ticks.items():
            rollout = slots[place].receive(tick)
            if rollout is not None:
                results[rollout[0]] = rollout[1]
                progress(len(results))
        seen = slots[playing[0]].observation  # stands in for slots that were never used
        assert seen is not None
        state = policy.observe(
            _stack([slot.observation or seen for slot in slots], instruction, policy.device), state
        )
        due = [place for place, slot in enumerate(slots) if slot.needs_a_plan]
        if due:
            noise = torch.stack([slot.noise() for slot in slots]).to(policy.device)
            chunks = policy.act(state, steps=steps, source=noise).cpu().numpy()
            for place in due:
                slots[place].queue = list(chunks[place, :executed])


class _Slot:
    """One place of the batch: the episode in it, and what is left of its chunk."""

    def __init__(self, features: Features) -> None:
        self.episode: int | None = None
        self.observation: dict[str, Any] | None = None
        self.queue: list[np.ndarray] = []
        self._done: list[np.ndarray] = []
        self._shape = (features.horizon, features.action)
        self._generator = torch.Generator()

    def begin(self, episode: int, seed: int) -> None:
        self.episode, self.queue, self._done = episode, [], []
        self._generator.manual_seed(seed)

    def noise(self) -> Tensor:
        """The next noise of this episode; nothing is drawn if no chunk is due."""
        return (
            torch.randn(self._shape, generator=self._generator)
            if self.needs_a_plan
            else torch.zeros(self._shape)
        )

    @property
    def needs_a_plan(self) -> bool:
        return self.episode is not None and not self.queue

    def next_action(self) -> np.ndarray:
        self._done.append(self.queue.pop(0))
        return self._done[-1]

    def receive(self, tick: Tick) -> tuple[int, Rollout] | None:
        """Take in what the environment shows; the number and the rollout if the episode is over."""
        self.observation = tick.observation
        if tick.decision:
            self.queue = []
        if tick.played is None or self.episode is None:
            return None
        finished = self.episode, Rollout(tick.played, np.asarray(self._done, np.float32))
        self.episode = None
        return finished


def _stack(
    observations: Sequence[dict[str, Any]], instruction: Tensor | None, device: torch.device
) -> Observation:
    """Observations of a Camo environment as one batch; an idle slot repeats its last one."""

    def stacked(arrays: list[np.ndarray]) -> Tensor:
        return torch.from_numpy(np.stack(arrays)).to(device)

    first = observations[0]
    return Observation(
        proprioception=stacked([each["proprioception"] for each in observations]),
        images={
            view: stacked([each["images"][view] for each in observations])
            for view in first.get("images", {})
        },
        objects=stacked([each["objects"] for each in observations]) if "objects" in first else None,
        instruction=None
        if instruction is None
        else instruction.to(device).expand(len(observations), -1),
    )
