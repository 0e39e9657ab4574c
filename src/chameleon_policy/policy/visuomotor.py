"""The base of every method: observations in, action chunks out, the memory as a value.

Chameleon and the methods it is compared with are subclasses. A method defines how event tokens
become a context for every moment (`_remember`), and what a head computes from a context in training
(`_errors`) and in control (`_sample`). Encoder, normalisation, checks, sampling of time steps,
saving and the training loop are the same for all.

    training   loss(batch)                    whole padded episodes at once
    control    observe(observation, state)    every control step; returns the next memory state
               act(state)                     when a chunk of actions is due
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from chameleon_policy.policy import saving
from chameleon_policy.policy.action_flow import ActionFlow
from chameleon_policy.policy.checks import (
    check_actions,
    check_batch,
    check_observation,
    check_rank,
    check_state,
)
from chameleon_policy.policy.config import PolicyConfig, to_json
from chameleon_policy.policy.event_tokens import EventTokens
from chameleon_policy.policy.features import Features
from chameleon_policy.policy.normalizer import Normalizer, Statistics
from chameleon_policy.policy.observation import Augmentation, EpisodeBatch, Observation
from chameleon_policy.policy.sampling import Source
from chameleon_policy.policy.state import Memory, MemoryState
from chameleon_policy.policy.targets import Targets, draw_moments


@dataclass(frozen=True, eq=False)
class Loss:
    """The objective of Eq. 17, or of another method, and its terms."""

    total: Tensor
    """L = action loss + weighted auxiliary terms."""
    parts: dict[str, Tensor]
    """Detached terms: `action` (Eq. 16), those of the method (for Chameleon `control_jepa`, Eq. 13,
    with `alignment` and `variance`), and `decision_loss`, the action loss over the deciding time
    steps of the batch if it marks them (NaN if none was drawn).
    """
    state: MemoryState | None
    """Detached memory after the batch, for the next window of the same episodes. The memory of an
    episode that ended in the batch is meaningless. None with `keep_state=False`.
    """
    augmentation: Augmentation | None = None
    """The random draws for these episodes in training mode, for the next window as well."""


@dataclass(frozen=True, eq=False)
class Remembered:
    """The contexts and the memory that a method computes from event tokens."""

    context: Tensor
    """B T ...: the input of the head at every moment; h_t for Chameleon."""
    memory: Memory | None
    """Memory after the last time step; None where `keep` is False."""
    bound: Tensor | None = None
    """B T N D: bound tokens of the last layer, if the method has them."""


@dataclass(frozen=True, eq=False)
class Terms:
    """The loss terms that a method adds to the action loss."""

    total: Tensor | float = 0.0
    """Weighted sum."""
    parts: dict[str, Tensor] = field(default_factory=dict)
    """Terms by name, for the metrics."""


def architecture_signature(
    config: PolicyConfig, features: Features, statistics: Statistics, method: str
) -> str:
    """Return a fingerprint of everything but the weights that gives a memory state its meaning.

    It covers method, architecture, features and statistics.
    """
    architecture = to_json(config)
    for option in ("preset", "objective", "sampling_steps"):
        del architecture[option]
    for ssm in (architecture["slow"], architecture["fast"]):
        for option in ("chunk", "half_life", "selectivity"):
            del ssm[option]
        if ssm["half_life_limit"] is None:  # older policies do not have this option
            del ssm["half_life_limit"]
    description = json.dumps(
        [method, architecture, to_json(features), to_json(statistics)], sort_keys=True
    )
    return hashlib.sha256(description.encode()).hexdigest()[:16]


class VisuomotorPolicy(nn.Module):
    """A policy without memory and head: the base of every method."""

    method: ClassVar[str]
    """Name on disk and on the command line."""
    few_steps: ClassVar[int] = 8
    """Sampling steps per chunk in benchmarks."""
    training_only: ClassVar[tuple[str, ...]] = ()
    """Prefixes of weights that control does not need; they are neither counted nor saved."""
    has_working_state: ClassVar[bool] = False
    """Whether a fast layer with a limited half-life carries a working state between steps."""
    carries_memory: ClassVar[bool] = True
    """Whether windows of a long episode can be trained on one after another."""
    temporal_ensemble: ClassVar[float | None] = None
    """How the weight of a chunk grows with its age where the executor averages overlapping chunks;
    None: only the newest chunk counts.
    """

    def __init__(
        self, config: PolicyConfig, features: Features, statistics: Statistics | None = None
    ) -> None:
        super().__init__()
        if not isinstance(config, PolicyConfig):
            raise ValueError(
                f'config: expected a PolicyConfig such as preset("nano"), got {config!r}'
            )
        self.config, self.features = config, features
        self.statistics = Statistics() if statistics is None else statistics
        self.event_tokens = EventTokens(config, features, self.statistics)
        self.normalize_action = Normalizer(features.action, self.statistics.action, "action")
        self.signature = architecture_signature(config, features, self.statistics, self.method)
        self.provenance: dict[str, Any] = {}
        """Origin of the weights, such as seed and git revision."""

    @classmethod
    def check_requirements(cls) -> None:
        """Raise an ImportError if a package that only this method needs is missing."""

    # Methods override these

    def _initial_memory(self, batch_size: int) -> Memory:
        """Make the memory before the first time step."""
        return ()

    def _remember(
        self, tokens: Tensor, memory: Memory | None, steps: Tensor | None, *, keep: bool
    ) -> Remembered:
        """Compute contexts from event tokens (B T N D).

        `memory` has observed `steps` (B) time steps; without it the tokens begin an episode.
        """
        raise NotImplementedError

    def _errors(self, context: Tensor, targets: Targets) -> tuple[Tensor, Terms]:
        """Compute the head's errors (M H A) at M moments, and additional loss terms."""
        raise NotImplementedError

    def _sample(
        self,
        state: MemoryState,
        steps: int,
        source: Source | Tensor,
        generator: torch.Generator | None,
    ) -> Tensor:
        """Sample normalised chunks (B H A)."""
        raise NotImplementedError

    def _condition(self, context: Tensor) -> Tensor:
        """Compute the head's condition from contexts (M ...), which is also what probes read."""
        return context

    @property
    def _context_shape(self) -> tuple[int, ...]:
        """Shape of the context of one moment."""
        return (self.config.width,)

    def _auxiliary(self, remembered: Remembered, valid: Tensor) -> Terms:
        """Compute the loss terms that do not come from the head."""
        return Terms()

    def add_training_branch(self) -> None:
        """Add the parts that only training needs to a policy that was built for control."""

    @classmethod
    def for_control(cls, config: PolicyConfig, features: Features, statistics: Statistics) -> Self:
        """Make a policy without the parts that only training needs."""
        return cls(config, features, statistics)

    # Properties

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self.event_tokens.proprioception.weight.device

    @property
    def executed(self) -> int:
        """Number of actions of a chunk to execute before the next one is due."""
        return self.features.executed

    @property
    def parameter_count(self) -> int:
        """Number of trainable parameters that control uses."""
        counted = (
            p for name, p in self.named_parameters() if not name.startswith(self.training_only)
        )
        return sum(parameter.numel() for parameter in counted)

    @property
    def forget_activations(self) -> bool:
        """Whether encoders and memory layers recompute activations in the backward pass."""
        return self.event_tokens.forget_activations

    @forget_activations.setter
    def forget_activations(self, forget: bool) -> None:
        self.event_tokens.forget_activations = forget

    @property
    def _precision(self) -> torch.dtype:
        """Type of the weights."""
        return self.event_tokens.proprioception.weight.dtype

    # Control

    def initial_state(self, batch_size: int = 1) -> MemoryState:
        """Make the memory before the first observation, for `batch_size` robots."""
        if not isinstance(batch_size, int) or batch_size < 1:
            raise ValueError(
                f"batch_size: expected a whole number of at least 1, got {batch_size!r}"
            )
        return MemoryState(
            layers=self._initial_memory(batch_size),
            working=torch.zeros(
                batch_size, *self._context_shape, dtype=self._precision, device=self.device
            ),
            steps=torch.zeros(batch_size, dtype=torch.int64, device=self.device),
            signature=self.signature,
        )

    @torch.no_grad()
    def observe(self, observation: Observation, state: MemoryState) -> MemoryState:
        """Observe one control step (no time axis) and return the new memory.

        Call it on EVERY control step.
        """
        if not isinstance(observation, Observation):
            raise ValueError(f"observe: expected an Observation, got {type(observation).__name__}")
        check_rank("proprioception", observation.proprioception, 2)
        self.check_state(state, len(observation.proprioception))
        check_observation(observation, self.features, (len(state),))
        return self.advance(
            observation.to(self.device).map(lambda tensor: tensor.unsqueeze(1)), state
        )

    def advance(self, observation: Observation, state: MemoryState) -> MemoryState:
        """Observe time steps (with a time axis) whose observations were checked before."""
        remembered = self._remember(
            self.event_tokens(observation), state.layers, state.steps, keep=True
        )
        return self._memory_after(remembered, state)

    @torch.no_grad()
    def act(
        self,
        state: MemoryState,
        *,
        steps: int | None = None,
        source: Source | Tensor = "gaussian",
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Return the next H actions (B H A) in the robot's units, for the last observed moment.

        `steps` is the number of sampling steps (default: the configuration's, 50 Euler steps in the
        paper). `source` is the noise that the flow starts from ("zero" makes sampling
        deterministic; a tensor B H A is used as it is), and `generator` fixes the noise. Raises a
        ValueError that names the robots if an action is not a finite number.
        """
        self.check_state(state)
        if bool((state.steps == 0).any()):
            raise ValueError(
                "act: this state has not observed anything yet; call observe(observation, state) "
                "first"
            )
        chunk = self._sample(
            state, self.config.sampling_steps if steps is None else steps, source, generator
        )
        actions = self.normalize_action.inverse(chunk)
        check_actions(actions)
        return actions

    @torch.no_grad()
    def working_states(self, observation: Observation) -> Tensor:
        """Return the head's condition at every time step (B T ...) of whole episodes."""
        check_rank("proprioception", observation.proprioception, 3)
        check_observation(observation, self.features, tuple(observation.proprioception.shape[:2]))
        tokens = self.event_tokens(observation.to(self.device))
        context = self._remember(tokens, None, None, keep=False).context
        return self._condition(context.flatten(0, 1)).unflatten(0, context.shape[:2])

    # Training

    def loss(
        self,
        batch: EpisodeBatch,
        state: MemoryState | None = None,
        augmentation: Augmentation | None = None,
        *,
        check_values: bool = True,
        keep_state: bool = True,
    ) -> Loss:
        """Compute the loss over whole padded episodes: Eq. 17 for Chameleon.

        For the windows of a long episode pass the previous window's `Loss.state` and one
        `draw_augmentation` for all of them. In training mode crops and proprioceptive noise are
        random; in eval mode crops are centred and the input has no noise. `check_values=False`
        skips the checks that synchronise with the device, `keep_state=False` the memory after the
        batch.
        """
        self._check_batch(batch, state, check_values)
        if self.training and augmentation is None:
            augmentation = self.draw_augmentation(len(batch.valid))
        total, parts, after = self._losses(
            batch, state, augmentation if self.training else None, keep_state
        )
        return Loss(
            total, {name: part.detach() for name, part in parts.items()}, after, augmentation
        )

    def _losses(
        self,
        batch: EpisodeBatch,
        state: MemoryState | None,
        augmentation: Augmentation | None,
        keep_state: bool,
    ) -> tuple[Tensor, dict[str, Tensor], MemoryState | None]:
        """Compute the loss, its terms and the memory after the batch."""
        tokens = self.event_tokens(batch.observation, augmentation)
        before = (None, None) if state is None else (state.layers, state.steps)
        remembered = self._remember(tokens, *before, keep=keep_state)
        moments = draw_moments(batch, self.config.objective.action_steps)
        targets = Targets.of(batch, self.features, self.normalize_action, self._precision).at(
            moments
        )
        total, parts = self._head_loss(remembered.context[moments].flatten(0, 1), targets)
        more = self._auxiliary(remembered, batch.valid)
        after = self._memory_after(remembered, state).detach() if keep_state else None
        return total + more.total, {**parts, **more.parts}, after

    def _head_loss(self, context: Tensor, targets: Targets) -> tuple[Tensor, dict[str, Tensor]]:
        errors, terms = self._errors(context, targets)
        action, decision = targets.means(errors)
        parts = {"action": action, **terms.parts}
        if decision is not None:
            parts["decision_loss"] = decision
        return action + terms.total, parts

    def update_target(self) -> None:
        """Move the targets of the loss after an optimizer step, for methods that have some."""

    def draw_augmentation(self, episodes: int) -> Augmentation:
        """Draw what is constant within an episode: a crop per view and a proprioceptive offset."""
        return self.event_tokens.draw_augmentation(episodes)

    # Checks

    def _check_batch(
        self, batch: EpisodeBatch, state: MemoryState | None, check_values: bool
    ) -> None:
        check_rank("proprioception", batch.observation.proprioception, 3)
        device = batch.observation.proprioception.device
        if device != self.device:
            raise ValueError(
                f"batch: it is on {device}, the policy on {self.device}; "
                f'use batch.to("{self.device}")'
            )
        check_batch(batch, self.features, values=check_values)
        if batch.emphasis is not None and self.config.objective.action_steps is None:
            raise ValueError(
                "emphasis: it has a meaning only with objective.action_steps; set that, or leave "
                "it out"
            )
        if state is not None:
            self.check_state(state, len(batch.valid))

    def check_state(self, state: MemoryState, batch_size: int | None = None) -> None:
        """Raise a ValueError if a memory state does not belong to this policy or batch size."""
        check_state(state, self.signature, self.device, batch_size)

    def _memory_after(self, remembered: Remembered, before: MemoryState | None) -> MemoryState:
        context = remembered.context
        episodes, steps = context.shape[:2]
        assert remembered.memory is not None
        return MemoryState(
            layers=remembered.memory,
            # A copy: a view would keep the whole sequence in memory.
            working=context[:, -1].to(self._precision, copy=True),
            steps=torch.full((episodes,), steps, device=context.device)
            + (0 if before is None else before.steps),
            signature=self.signature,
        )

    # Saving

    def save_pretrained(self, directory: str | Path) -> None:
        """Write `config.json`, `normalizer.json` and `model.safetensors` for control."""
        saving.save(self, Path(directory))

    @classmethod
    def from_pretrained(
        cls, path_or_hub_id: str | Path, *, device: torch.device | str = "cpu"
    ) -> Self:
        """Load a policy from a directory, or `hf:owner/name` from the hub, in eval mode.

        Every key must match.
        """
        return saving.load(cls, path_or_hub_id, torch.device(device))


class FlowPolicy(VisuomotorPolicy):
    """A method whose head is the paper's rectified flow on one vector (B D)."""

    action_flow: ActionFlow

    def flow_context(self, working: Tensor) -> list[Tensor]:
        """Compute what an Euler step needs of working states (B ...): keys and values, Eq. 14."""
        return self.action_flow.condition(self._condition(working.to(self._precision)))

    def _errors(self, context: Tensor, targets: Targets) -> tuple[Tensor, Terms]:
        """Compute Eq. 16: squared errors of the clean chunk in normalised units."""
        predicted = self.action_flow(
            self._condition(context), targets.chunks, self.config.objective.flow_time_power
        )
        return (predicted.to(targets.chunks.dtype) - targets.chunks).square(), Terms()

    def _sample(
        self,
        state: MemoryState,
        steps: int,
        source: Source | Tensor,
        generator: torch.Generator | None,
    ) -> Tensor:
        return self.action_flow.sample(
            self._condition(state.working.to(self._precision)), steps, source, generator
        )
