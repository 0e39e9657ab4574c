"""Episodes that a policy plays once, and plays again from a decision on with another memory.

    played = play(policy, settings, seeds)                        once, with the memory at every decision kept
    with stage(played, decision) as pool:
        again = go_on(policy, played, decision, memories, pool)   from that decision on, with these memories

Up to the decision the second pass repeats the actions of the first. There, each robot's memory is
replaced by the one that is given, and the policy looks, recalls and acts. With the memory that it
had, it does the same again, bit for bit.
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
from chameleon_policy.camo.tasks import Answer
from chameleon_policy.evaluate.evaluation import embed_instruction
from chameleon_policy.evaluate.pool import EnvPool
from chameleon_policy.evaluate.rollouts import Rollout, roll_out
from chameleon_policy.policy import ChameleonPolicy, Inspection, MemoryState, Observation


@dataclass(frozen=True, eq=False)
class Decided:
    """A robot at a decision."""

    memory: MemoryState
    """Before it looks at the scene of the decision: what it has of the past."""
    control_context: tuple[Tensor, ...]
    """u_t of every layer when it looked, 1 1 D each."""
    attention: Tensor
    """L heads N: what recall then attended to."""


@dataclass(frozen=True, eq=False)
class Continued:
    """An episode that went on with another memory."""

    rollout: Rollout
    working: Tensor
    """h at the decision, D."""
    plan: Tensor
    """The chunk of actions that followed, H A, in the robot's units."""


@dataclass(frozen=True, eq=False)
class Played:
    """Episodes of one pass, and the memory at each of their decisions."""

    settings: CamoSettings
    rollouts: list[Rollout]
    decided: dict[tuple[int, int], Decided]
    """Episode and number of its decision -> the robot there."""
    workers: int
    sampling_steps: int | None

    @property
    def decisions(self) -> int:
        """Decisions that at least one episode came to."""
        return max((decision for _, decision in self.decided), default=-1) + 1

    def reached(self, decision: int) -> list[int]:
        """Episodes that came to this decision."""
        return [
            episode for episode in range(len(self.rollouts)) if (episode, decision) in self.decided
        ]

    def asked_for(self, episode: int, decision: int) -> int:
        """What a decision of an episode asks for."""
        z: Answer = self.rollouts[episode].played.z
        return z[decision] if isinstance(z, tuple) else z


def play_twins(
    policy: ChameleonPolicy,
    played: Played,
    *,
    progress: Callable[[int], object] = lambda done: None,
) -> Played:
    """The same scenes once more, each with another answer: the next place, at every decision.

    At the decision a twin sees, to the last bit, what the episode sees; what it remembers differs
    in what was shown.
    """
    seeds = [rollout.played.seed for rollout in played.rollouts]
    choices = len(task_named(played.settings.task).candidates)
    answers = [_next(rollout.played.z, choices) for rollout in played.rollouts]
    return play(
        policy,
        played.settings,
        seeds,
        answers=answers,
        steps=played.sampling_steps,
        workers=played.workers,
        progress=progress,
    )


def _next(z: Answer, choices: int) -> Answer:
    return (
        tuple((place + 1) % choices for place in z) if isinstance(z, tuple) else (z + 1) % choices
    )


def play(
    policy: ChameleonPolicy,
    settings: CamoSettings,
    seeds: Sequence[int],
    *,
    answers: Sequence[Answer] | None = None,
    steps: int | None = None,
    workers: int = 2,
    watch: Callable[[Inspection], None] | None = None,
    progress: Callable[[int], object] = lambda done: None,
) -> Played:
    """Play one episode for every seed, all at once; `watch` is called with what the policy computes
    at each step.

    With `answers`, the episodes have these in place of those that their seeds decide; nothing else
    of them is changed.
    """
    keeper = _Keeper(policy, watch)
    with EnvPool(settings, len(seeds), workers) as pool:
        rollouts = _pass(keeper, pool, settings.task, seeds, steps, progress, answers)
    return Played(settings, rollouts, keeper.decided, workers, steps)


@contextmanager
def stage(played: Played, decision: int, *, until_choice: bool = True) -> Iterator[EnvPool]:
    """The environments in which episodes go on from a decision; with `until_choice` they end with
    the next choice.
    """
    settings = replace(played.settings, until_choice=decision if until_choice else None)
    with EnvPool(settings, len(played.rollouts), played.workers) as pool:
        yield pool


def go_on(
    policy: ChameleonPolicy,
    played: Played,
    decision: int,
    memories: Mapping[int, MemoryState],
    pool: EnvPool,
    *,
    same_question: bool = True,
) -> dict[int, Continued]:
    """Episode -> what becomes of it from a decision on with another memory, in the environments of
    `stage`.

    With `same_question` the memory is asked, when the decision is due, with the control contexts
    u_t of the first pass.
    """
    chosen = [episode for episode in played.reached(decision) if episode in memories]
    if not chosen:
        return {}
    # All episodes are played again, each by the robot of the first pass, also those that only
    # repeat what they did: the last bits of a result depend on its place in the batch.
    robots = {
        number: _Robot(
            actions=rollout.actions,
            memory=memories[number] if number in chosen else None,
            control_context=(
                played.decided[number, decision].control_context
                if same_question and number in chosen
                else None
            ),
        )
        for number, rollout in enumerate(played.rollouts)
    }
    continuer = _Continuer(policy, robots, decision)
    seeds = [rollout.played.seed for rollout in played.rollouts]
    rollouts = _pass(continuer, pool, played.settings.task, seeds, played.sampling_steps)
    return {
        number: Continued(rollouts[number], continuer.working[number], continuer.plans[number])
        for number in chosen
    }


def _pass(
    policy: _Keeper | _Continuer,
    pool: EnvPool,
    task: str,
    seeds: Sequence[int],
    steps: int | None,
    progress: Callable[[int], object] = lambda done: None,
    answers: Sequence[Answer] | None = None,
) -> list[Rollout]:
    """All episodes begin at once, so that robot and episode have the same number."""
    assert len(seeds) == pool.slots
    return roll_out(
        policy,
        pool,
        seeds,
        steps=steps,
        instruction=embed_instruction(policy.features, task_named(task).instruction),
        answers=answers,
        progress=progress,
    )


class _Keeper:
    """A policy that keeps the memory of every decision."""

    def __init__(self, policy: ChameleonPolicy, watch: Callable[[Inspection], None] | None) -> None:
        self.decided: dict[tuple[int, int], Decided] = {}
        self.features, self.device, self.executed = policy.features, policy.device, policy.executed
        self._policy, self._watch = policy, watch
        self._decisions: Counter[int] = Counter()
        self._deciding: dict[int, MemoryState] = {}

    def initial_state(self, batch_size: int = 1) -> MemoryState:
        return self._policy.initial_state(batch_size)

    def drop_plans(self, state: MemoryState, robots: Sequence[int]) -> MemoryState:
        self._deciding = {robot: state[robot].to("cpu") for robot in robots}
        return self._policy.drop_plans(state, robots)

    def observe(self, observation: Observation, state: MemoryState) -> MemoryState:
        seen = self._policy.inspect(_with_time(observation), state)
        for robot, memory in self._deciding.items():
            contexts = tuple(context[[robot]].cpu() for context in seen.control_context)
            place = robot, self._decisions[robot]
            self.decided[place] = Decided(memory, contexts, seen.attention[robot, 0].cpu())
            self._decisions[robot] += 1
        self._deciding = {}
        if self._watch is not None:
            self._watch(seen)
        return seen.state

    def act(self, state: MemoryState, *, steps: int | None, source: Tensor) -> Tensor:
        return self._policy.act(state, steps=steps, source=source)


@dataclass(frozen=True, eq=False)
class _Robot:
    """What it does up to the decision, the memory it has then, and the question that is asked."""

    actions: np.ndarray
    memory: MemoryState | None
    """None: it goes on to repeat its actions."""
    control_context: tuple[Tensor, ...] | None


class _Continuer:
    """Repeats actions up to a decision, and from there on is the policy with another memory."""

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

    def drop_plans(self, state: MemoryState, robots: Sequence[int]) -> MemoryState:
        for robot in robots:
            self._decisions[robot] += 1
            memory = self._robots[robot].memory
            if memory is not None and self._decisions[robot] == self._decision + 1:
                state = state.put(robot, memory.to(self.device))
                self._deciding.append(robot)
                self._free.add(robot)
        return self._policy.drop_plans(state, robots)

    def observe(self, observation: Observation, state: MemoryState) -> MemoryState:
        self._step += 1
        if not self._free:  # nobody looks yet
            return state
        shown = _with_time(observation)
        contexts = self._questions(shown, state) if self._deciding else None
        seen = self._policy.inspect(shown, state, control_context=contexts)
        self.working |= {robot: seen.working[robot, 0].float().cpu() for robot in self._deciding}
        return seen.state

    def _questions(self, observation: Observation, state: MemoryState) -> list[Tensor] | None:
        """Every robot's own control contexts, but for those at the decision: theirs are given."""
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
    """Robots that repeat actions have looked at nothing; the policy refuses to act for such, and
    theirs is not used.
    """
    return replace(state, steps=state.steps.clamp(min=1))
