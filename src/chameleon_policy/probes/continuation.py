"""Play episodes once, then continue them from a decision with another memory.

    played = play_episodes(policy, settings, seeds)      # keeps the memory at every decision
    with continuation_pool(played, decision) as pool:
        continued = continue_episodes(policy, played, decision, memories, pool)

The second pass repeats the actions of the first one up to the decision. There the memory of each
robot is replaced by a given one, and the policy observes and acts in closed loop. With its own
memory it repeats its actions bit for bit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from chameleon_policy.camo import task_named
from chameleon_policy.camo.settings import CamoSettings
from chameleon_policy.camo.tasks import Answer, make_task
from chameleon_policy.evaluate.evaluation import embed_instruction
from chameleon_policy.evaluate.pool import EnvPool
from chameleon_policy.evaluate.rollouts import Rollout, roll_out
from chameleon_policy.policy import ChameleonPolicy, Inspection, MemoryState, Observation


@dataclass(frozen=True, eq=False)
class DecisionPoint:
    """The memory and the recall of a robot at a decision."""

    memory: MemoryState
    """Memory before the observation at the decision."""
    control_context: tuple[Tensor, ...]
    """u_t of every layer at the decision, 1 1 D each."""
    attention: Tensor
    """L heads N: attention weights of recall at the decision."""


@dataclass(frozen=True, eq=False)
class Continuation:
    """An episode continued with another memory."""

    rollout: Rollout
    working: Tensor
    """h at the decision, D."""
    plan: Tensor
    """The chunk of actions planned at the decision, H A, in the robot's units."""


@dataclass(frozen=True, eq=False)
class PlayedEpisodes:
    """Episodes of one pass with the memory at each of their decisions."""

    settings: CamoSettings
    rollouts: list[Rollout]
    points: dict[tuple[int, int], DecisionPoint]
    """By episode index and decision index."""
    workers: int
    sampling_steps: int | None

    @property
    def decisions(self) -> int:
        """Number of decisions that at least one episode reached."""
        return max((decision for _, decision in self.points), default=-1) + 1

    def reached(self, decision: int) -> list[int]:
        """Return the episodes that reached this decision."""
        return [
            episode for episode in range(len(self.rollouts)) if (episode, decision) in self.points
        ]

    def right_choice(self, episode: int, decision: int) -> int:
        """Return the right choice at a decision of an episode."""
        z: Answer = self.rollouts[episode].played.z
        return z[decision] if isinstance(z, tuple) else z


def play_twins(
    policy: ChameleonPolicy,
    played: PlayedEpisodes,
    *,
    progress: Callable[[int], object] = lambda done: None,
) -> PlayedEpisodes:
    """Play the same scenes with another answer: the next candidate, at every decision.

    At a decision the observation of a twin equals that of the episode to the last bit; only the
    evidence before it differed.
    """
    seeds = [rollout.played.seed for rollout in played.rollouts]
    task = make_task(played.settings.task, played.settings.difficulty)
    answers = []
    for rollout in played.rollouts:
        task.drawn = task.draw(rollout.played.seed)
        answers.append(_next(rollout.played.z, len(task.present)))
    return play_episodes(
        policy,
        played.settings,
        seeds,
        answers=answers,
        steps=played.sampling_steps,
        workers=played.workers,
        progress=progress,
    )


def _next(z: Answer, choices: int) -> Answer:
    if isinstance(z, tuple):
        return tuple((choice + 1) % choices for choice in z)
    return (z + 1) % choices


def play_episodes(
    policy: ChameleonPolicy,
    settings: CamoSettings,
    seeds: Sequence[int],
    *,
    answers: Sequence[Answer] | None = None,
    steps: int | None = None,
    workers: int = 2,
    watch: Callable[[Inspection], None] | None = None,
    progress: Callable[[int], object] = lambda done: None,
) -> PlayedEpisodes:
    """Play one episode per seed, all in parallel; `watch` receives the inspection of every step.

    `answers` replace those that follow from the seeds; everything else stays the same.
    """
    recorder = _RecordingPolicy(policy, watch)
    with EnvPool(settings, len(seeds), workers) as pool:
        rollouts = _roll_out_all(recorder, pool, settings.task, seeds, steps, progress, answers)
    return PlayedEpisodes(settings, rollouts, recorder.points, workers, steps)


@contextmanager
def continuation_pool(
    played: PlayedEpisodes, decision: int, *, until_choice: bool = True
) -> Iterator[EnvPool]:
    """Open environments for `continue_episodes`; with `until_choice` episodes end at the choice."""
    settings = replace(played.settings, until_choice=decision if until_choice else None)
    with EnvPool(settings, len(played.rollouts), played.workers) as pool:
        yield pool


def continue_episodes(
    policy: ChameleonPolicy,
    played: PlayedEpisodes,
    decision: int,
    memories: Mapping[int, MemoryState],
    pool: EnvPool,
    *,
    same_question: bool = True,
) -> dict[int, Continuation]:
    """Continue episodes from a decision with other memories (by episode index).

    With `same_question`, recall at the decision uses the control contexts u_t of the first pass.
    """
    chosen = [episode for episode in played.reached(decision) if episode in memories]
    if not chosen:
        return {}
    # All episodes are played again at their old index, also those that only repeat their actions:
    # the last bits of a result depend on its position in the batch.
    robots = {
        number: _Robot(
            actions=rollout.actions,
            memory=memories[number] if number in chosen else None,
            control_context=(
                played.points[number, decision].control_context
                if same_question and number in chosen
                else None
            ),
        )
        for number, rollout in enumerate(played.rollouts)
    }
    continuing = _ContinuingPolicy(policy, robots, decision)
    seeds = [rollout.played.seed for rollout in played.rollouts]
    rollouts = _roll_out_all(continuing, pool, played.settings.task, seeds, played.sampling_steps)
    return {
        number: Continuation(rollouts[number], continuing.working[number], continuing.plans[number])
        for number in chosen
    }


def _roll_out_all(
    policy: _RecordingPolicy | _ContinuingPolicy,
    pool: EnvPool,
    task: str,
    seeds: Sequence[int],
    steps: int | None,
    progress: Callable[[int], object] = lambda done: None,
    answers: Sequence[Answer] | None = None,
) -> list[Rollout]:
    """Roll out one episode per slot, so that robot and episode have the same index."""
    assert len(seeds) == pool.slots
    return roll_out(
        policy,
        pool,
        seeds,
        steps=steps,
        instruction=embed_instruction(policy.features, task_named(task).instruction),
        answers=answers,
        at_decision=policy.at_decision,
        progress=progress,
    )


class _RecordingPolicy:
    """A policy that records the memory at every decision."""

    temporal_ensemble = None

    def __init__(self, policy: ChameleonPolicy, watch: Callable[[Inspection], None] | None) -> None:
        self.points: dict[tuple[int, int], DecisionPoint] = {}
        self.features, self.device, self.executed = policy.features, policy.device, policy.executed
        self._policy, self._watch = policy, watch
        self._decisions: Counter[int] = Counter()
        self._deciding: dict[int, MemoryState] = {}

    def initial_state(self, batch_size: int = 1) -> MemoryState:
        return self._policy.initial_state(batch_size)

    def at_decision(self, state: MemoryState, robots: Sequence[int]) -> MemoryState:
        self._deciding = {robot: state[robot].to("cpu") for robot in robots}
        return state

    def observe(self, observation: Observation, state: MemoryState) -> MemoryState:
        inspection = self._policy.inspect(_with_time(observation), state)
        for robot, memory in self._deciding.items():
            contexts = tuple(context[[robot]].cpu() for context in inspection.control_context)
            point = DecisionPoint(memory, contexts, inspection.attention[robot, 0].cpu())
            self.points[robot, self._decisions[robot]] = point
            self._decisions[robot] += 1
        self._deciding = {}
        if self._watch is not None:
            self._watch(inspection)
        return inspection.state

    def act(self, state: MemoryState, *, steps: int | None, source: Tensor) -> Tensor:
        return self._policy.act(state, steps=steps, source=source)


@dataclass(frozen=True, eq=False)
class _Robot:
    """The actions up to the decision, and the memory and control context at the decision."""

    actions: np.ndarray
    memory: MemoryState | None
    """None: the robot repeats its actions to the end."""
    control_context: tuple[Tensor, ...] | None


class _ContinuingPolicy:
    """A policy that repeats actions up to a decision, and acts with another memory after it."""

    temporal_ensemble = None

    def __init__(
        self, policy: ChameleonPolicy, robots: Mapping[int, _Robot], decision: int
    ) -> None:
        self.features, self.device, self.executed = policy.features, policy.device, policy.executed
        self._policy, self._robots, self._decision = policy, robots, decision
        self._decisions: Counter[int] = Counter()
        self._deciding: list[int] = []
        self._free: set[int] = set()
        self._step = -1
        self.working: dict[int, Tensor] = {}
        self.plans: dict[int, Tensor] = {}

    def initial_state(self, batch_size: int = 1) -> MemoryState:
        return self._policy.initial_state(batch_size)

    def at_decision(self, state: MemoryState, robots: Sequence[int]) -> MemoryState:
        for robot in robots:
            self._decisions[robot] += 1
            memory = self._robots[robot].memory
            if memory is not None and self._decisions[robot] == self._decision + 1:
                state = state.put(robot, memory.to(self.device))
                self._deciding.append(robot)
                self._free.add(robot)
        return state

    def observe(self, observation: Observation, state: MemoryState) -> MemoryState:
        self._step += 1
        if not self._free:
            return state
        observation = _with_time(observation)
        contexts = self._control_contexts(observation, state) if self._deciding else None
        inspection = self._policy.inspect(observation, state, control_context=contexts)
        self.working |= {
            robot: inspection.working[robot, 0].float().cpu() for robot in self._deciding
        }
        return inspection.state

    def _control_contexts(
        self, observation: Observation, state: MemoryState
    ) -> list[Tensor] | None:
        """Compute the control contexts of all robots; those at the decision keep the given ones."""
        given = {robot: self._robots[robot].control_context for robot in self._deciding}
        if not any(given.values()):
            return None
        own = [
            context.clone() for context in self._policy.inspect(observation, state).control_context
        ]
        for robot, contexts in given.items():
            for layer, context in enumerate(contexts or ()):
                own[layer][robot] = context[0].to(own[layer])
        return own

    def act(self, state: MemoryState, *, steps: int | None, source: Tensor) -> Tensor:
        chunks = torch.zeros(
            len(source), self.features.horizon, self.features.action, device=self.device
        )
        if self._free:
            chunks = self._policy.act(_observed(state), steps=steps, source=source)
            self.plans |= {robot: chunks[robot].float().cpu() for robot in self._deciding}
            self._deciding = []
        for robot in self._robots.keys() - self._free:
            coming = self._robots[robot].actions[self._step : self._step + self.executed]
            chunks[robot, : len(coming)] = torch.from_numpy(coming).to(chunks)
        return chunks


def _with_time(observation: Observation) -> Observation:
    return observation.map(lambda tensor: tensor.unsqueeze(1))


def _observed(state: MemoryState) -> MemoryState:
    """Raise step counts to one, as `act` expects.

    Robots that still repeat actions have observed nothing; their chunks are discarded.
    """
    return replace(state, steps=state.steps.clamp(min=1))
