"""The Chameleon policy: observation -> event tokens -> memory layers -> working state -> action chunk (Eq. 1).

One model with two faces:

    training   loss(batch)                    whole padded episodes at once
    control    observe(observation, state)    every control step; returns the next memory state
               act(state)                     when a chunk of actions is due

Decisions
- The memory is a value. `observe` returns a new `MemoryState` and keeps nothing; starting an episode is making a state.
- Memory advances on every control step, also while a chunk is being executed.
- Control and training run the same code: a control step is a sequence of length one.
- Observations come in and actions go out in the robot's units; normalisation happens inside.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn

from chameleon_policy import kernels
from chameleon_policy.kernels.weights import converted
from chameleon_policy.policy import saving
from chameleon_policy.policy.action_flow import ActionFlow, Source
from chameleon_policy.policy.checkpointing import run_layer
from chameleon_policy.policy.config import PolicyConfig, to_json
from chameleon_policy.policy.control_jepa import ControlJEPA
from chameleon_policy.policy.event_tokens import Augmentation, EventTokens
from chameleon_policy.policy.features import Features
from chameleon_policy.policy.initialization import initialise
from chameleon_policy.policy.memory import ControlContext, LayerOutput, MemoryLayer
from chameleon_policy.policy.normalizer import Normalizer, Statistics
from chameleon_policy.policy.observation import EpisodeBatch, Observation, check_observation, check_rank
from chameleon_policy.policy.state import MemoryState


@dataclass(frozen=True, eq=False)
class Loss:
    """The objective of Eq. 17 and what it is made of."""

    total: Tensor
    """L = action + alpha * control_jepa."""
    parts: dict[str, Tensor]
    """Detached: `action` (Eq. 16), `control_jepa` (Eq. 13), its terms `alignment` and `variance`, and `decision_loss`: the
    action loss of the batch's deciding time steps alone, where it says which those are (NaN if none of them was drawn)."""
    state: MemoryState | None
    """Memory after the batch, detached: pass it on with the next window of the same episodes. An episode that ended inside
    the batch has run on over its padding; its memory means nothing any more. None with `keep_state=False`."""
    augmentation: Augmentation | None = None
    """What was drawn for these episodes in training mode: pass it on with the next window as well."""


def architecture_signature(config: PolicyConfig, features: Features, statistics: Statistics, method: str) -> str:
    """Fingerprint of what decides the meaning of a memory state, but for the weights: architecture, data, statistics."""
    architecture = to_json(config)
    for option in ("preset", "objective", "sampling_steps"):
        del architecture[option]
    for ssm in (architecture["slow"], architecture["fast"]):
        for option in ("chunk", "half_life", "selectivity"):
            del ssm[option]
    description = json.dumps([method, architecture, to_json(features), to_json(statistics)], sort_keys=True)
    return hashlib.sha256(description.encode()).hexdigest()[:16]


class ChameleonPolicy(nn.Module):
    """A visuomotor policy that remembers.

    `with_control_jepa` adds the training-only branch (predictor and EMA target); without it `loss` is refused.
    """

    method: ClassVar[str] = "chameleon"
    """What a variant of the policy is called on disk and on the command line."""

    def __init__(
        self,
        config: PolicyConfig,
        features: Features,
        statistics: Statistics | None = None,
        *,
        with_control_jepa: bool = True,
    ) -> None:
        super().__init__()
        if not isinstance(config, PolicyConfig):
            raise ValueError(f'config: expected a PolicyConfig such as preset("nano"), got {config!r}')
        self.config, self.features = config, features
        self.statistics = statistics or Statistics()
        self.event_tokens = EventTokens(config, features, self.statistics)
        self.memory = nn.ModuleList(MemoryLayer(config) for _ in range(config.layers))
        self.action_flow = ActionFlow(config, features.action, features.horizon)
        self.normalize_action = Normalizer(features.action, self.statistics.action, "action")
        initialise(self)
        self.control_jepa: ControlJEPA | None = None
        if with_control_jepa:
            self.add_control_jepa()
        self.signature = architecture_signature(config, features, self.statistics, self.method)

    @property
    def _control_context(self) -> ControlContext:
        """The last layer's control-context path, which Control-JEPA's target follows."""
        return self._layers[-1].recall.control_context

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.action_flow.action_out.weight.device

    @property
    def forget_activations(self) -> bool:
        """Whether the encoders and memory layers compute their insides again on the way back: less memory, more time."""
        return self.event_tokens.forget_activations

    @forget_activations.setter
    def forget_activations(self, forget: bool) -> None:
        self.event_tokens.forget_activations = forget

    # Control

    def initial_state(self, batch_size: int = 1) -> MemoryState:
        """The memory before the first observation, for `batch_size` robots."""
        if not isinstance(batch_size, int) or batch_size < 1:
            raise ValueError(f"batch_size: expected a whole number of at least 1, got {batch_size!r}")
        layers = [layer.initial_state(batch_size, self.features.tokens) for layer in self._layers]
        return MemoryState(
            layers=tuple(layers),
            working=self.action_flow.action_out.weight.new_zeros(batch_size, self.config.width),
            steps=torch.zeros(batch_size, dtype=torch.int64, device=self.device),
            signature=self.signature,
        )

    @torch.no_grad()
    def observe(self, observation: Observation, state: MemoryState) -> MemoryState:
        """Take in one control step (no time axis) and return the memory after it. Call it on EVERY control step."""
        if not isinstance(observation, Observation):
            raise ValueError(f"observe: expected an Observation, got {type(observation).__name__}")
        check_rank("proprioception", observation.proprioception, 2)
        self._check_state(state, len(observation.proprioception))
        check_observation(observation, self.features, (len(state),))
        tokens = self.event_tokens(observation.to(self.device).map(lambda tensor: tensor.unsqueeze(1)))
        return self.remember(tokens, state)[1]

    @torch.no_grad()
    def act(
        self,
        state: MemoryState,
        *,
        steps: int | None = None,
        source: Source | Tensor = "gaussian",
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """The next H actions (B H A) in the robot's units, for the moment that was observed last.

        `steps` is the number of Euler steps (default: the configuration's, 50 in the paper), `source` where the flow
        starts ("zero" makes sampling deterministic; a tensor B H A is taken as the noise itself), and `generator` fixes the
        noise.
        """
        self._check_state(state)
        if bool((state.steps == 0).any()):
            raise ValueError("act: this state has not observed anything yet; call observe(observation, state) first")
        chunk = self.action_flow.sample(
            state.working.to(self.action_flow.action_out.weight.dtype),
            self.config.sampling_steps if steps is None else steps,
            source,
            generator,
        )
        return self.normalize_action.inverse(chunk)

    @torch.no_grad()
    def working_states(self, observation: Observation) -> Tensor:
        """h of every time step (B T D) of whole episodes, from their beginning: what probes look at."""
        check_rank("proprioception", observation.proprioception, 3)
        check_observation(observation, self.features, tuple(observation.proprioception.shape[:2]))
        tokens = self.event_tokens(observation.to(self.device))
        return self._through_layers(tokens, None, keep_state=False)[-1].working

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
        """L = L_act + alpha L_CJEP, Eq. 17, over whole padded episodes.

        For the windows of a long episode pass the previous window's `Loss.state` and one `draw_augmentation` for all of
        them. In training mode crops and proprioceptive noise are random; in eval mode crops are centred and there is no
        noise on the input. `check_values=False` leaves out the checks that wait for the device, `keep_state=False` the
        memory afterwards, where no window follows.
        """
        control_jepa = self._training_branch
        check_rank("proprioception", batch.observation.proprioception, 3)
        device = batch.observation.proprioception.device
        if device != self.device:
            raise ValueError(f'batch: it is on {device}, the policy on {self.device}; use batch.to("{self.device}")')
        batch.check(self.features, values=check_values)
        if batch.emphasis is not None and self.config.objective.action_steps is None:
            raise ValueError("emphasis: it has a meaning only with objective.action_steps; set that, or leave it out")
        episodes = len(batch.valid)
        if state is not None:
            self._check_state(state, episodes)
        if self.training and augmentation is None:
            augmentation = self.draw_augmentation(episodes)
        tokens = self.event_tokens(batch.observation, augmentation if self.training else None)
        with self._weights_for(tokens):
            outputs = self._through_layers(tokens, state, keep_state=keep_state)
            working, bound = outputs[-1].working, outputs[-1].bound
            action, decision = self._action_loss(working, batch)
            alignment, variance = control_jepa(working, bound, batch.valid)
        after = self._memory_after(outputs, state).detach() if keep_state else None
        objective = self.config.objective
        prospective = alignment + objective.variance_weight * variance
        total = action + objective.control_jepa_weight * prospective
        parts = {"action": action, "control_jepa": prospective, "alignment": alignment, "variance": variance}
        if decision is not None:
            parts["decision_loss"] = decision
        return Loss(total, {name: part.detach() for name, part in parts.items()}, after, augmentation)

    def _weights_for(self, tokens: Tensor) -> AbstractContextManager[None]:
        """Inside this block linear layers have the type that products of these tokens are computed in.

        Not where activations are computed again on the way back, which is outside.
        """
        if not kernels.enabled(tokens) or self.forget_activations:
            return nullcontext()
        return converted([self.memory, self.action_flow, self._training_branch], kernels.compute_dtype(tokens))

    def draw_augmentation(self, episodes: int) -> Augmentation:
        """Draw what stays the same through an episode: one crop per view, one proprioceptive offset."""
        return self.event_tokens.draw_augmentation(episodes)

    def update_target(self) -> None:
        """Move Control-JEPA's EMA target; call it once after every optimizer step."""
        self._training_branch.update_target(self._control_context)

    def add_control_jepa(self) -> None:
        """Add the training-only branch, its target a copy of the online control-context path."""
        weight = self.action_flow.action_out.weight
        branch = ControlJEPA(self.config, self._control_context)
        initialise(branch.predictor)
        self.control_jepa = branch.to(weight.device, weight.dtype)

    @property
    def _precision(self) -> torch.dtype:
        """What the policy is kept in; a bias says it even while weights are converted for their products."""
        return self.action_flow.action_out.bias.dtype

    @property
    def _training_branch(self) -> ControlJEPA:
        if self.control_jepa is None:
            raise ValueError(
                "this policy was loaded or built for control, without its training branch; "
                "use ChameleonPolicy.from_pretrained(path, with_control_jepa=True) to train it"
            )
        return self.control_jepa

    def _action_loss(self, working: Tensor, batch: EpisodeBatch) -> tuple[Tensor, Tensor | None]:
        """L_act, Eq. 16: mean squared error of the clean chunk in normalised units, over the valid positions.

        With it, the same over the deciding time steps alone, where the batch says which those are.
        """
        objective, horizon = self.config.objective, self.features.horizon
        time = working.shape[1]
        missing = max(0, time + horizon - 1 - batch.actions.shape[1])
        actions_valid = batch.valid if batch.actions_valid is None else batch.actions_valid
        # Behind an episode's last action the head sees that action again; it is not counted, and padding is never seen.
        place = torch.arange(batch.actions.shape[1] + missing, device=working.device)
        place = torch.minimum(place, actions_valid.sum(1, keepdim=True) - 1)
        actions = batch.actions.gather(1, place.unsqueeze(-1).expand(-1, -1, self.features.action))
        actions = self.normalize_action(actions).to(self._precision)
        actions_valid = nn.functional.pad(actions_valid, (0, missing))
        chunks = actions.unfold(1, horizon, 1)[:, :time].transpose(-1, -2)  # B T H A
        counted = actions_valid.unfold(1, horizon, 1)[:, :time] & batch.valid.unsqueeze(-1)  # B T H
        deciding = batch.deciding
        if objective.action_steps is not None:
            weights = batch.valid if batch.emphasis is None else batch.emphasis * batch.valid
            chosen = torch.multinomial(weights.float(), objective.action_steps, replacement=True)
            episode = torch.arange(len(working), device=working.device).unsqueeze(1)
            working, chunks, counted = working[episode, chosen], chunks[episode, chosen], counted[episode, chosen]
            deciding = None if deciding is None else deciding[episode, chosen]
        chunks = chunks.flatten(0, 1)
        predicted = self.action_flow(working.flatten(0, 1), chunks, objective.flow_time_power)
        weight = counted.flatten(0, 1).unsqueeze(-1).to(chunks.dtype)
        squared_error = (predicted.to(chunks.dtype) - chunks).square() * weight
        action = squared_error.sum() / (weight.sum() * self.features.action).clamp(min=1)
        if deciding is None:
            return action, None
        here = deciding.flatten()[:, None, None]
        return action, (squared_error.detach() * here).sum() / ((weight * here).sum() * self.features.action)

    # Both

    @property
    def _layers(self) -> list[MemoryLayer]:
        return list(self.memory)  # type: ignore[arg-type]

    def remember(self, tokens: Tensor, state: MemoryState | None) -> tuple[list[LayerOutput], MemoryState]:
        """Event tokens (B T N D) through the memory layers: every layer's output, and the memory after the last step.

        Without a state, from the beginning of an episode: the same as from `initial_state`, without memory full of zeros.
        """
        outputs = self._through_layers(tokens, state)
        return outputs, self._memory_after(outputs, state)

    def _through_layers(self, tokens: Tensor, state: MemoryState | None, *, keep_state: bool = True) -> list[LayerOutput]:
        outputs: list[LayerOutput] = []
        for index, layer in enumerate(self._layers):
            last = index == self.config.layers - 1
            before = state and state.layers[index]
            output: LayerOutput = run_layer(
                layer, tokens, before, forget=self.forget_activations, write_back=not last, keep_state=keep_state
            )
            outputs.append(output)
            if output.tokens is not None:
                tokens = output.tokens
        return outputs

    def _memory_after(self, outputs: list[LayerOutput], before: MemoryState | None) -> MemoryState:
        working = outputs[-1].working
        episodes, steps = working.shape[:2]
        return MemoryState(
            layers=tuple(output.state for output in outputs),  # type: ignore[misc]
            # Copies, not views: a state must not keep the sequence it came from alive.
            working=working[:, -1].to(self._precision, copy=True),
            steps=torch.full((episodes,), steps, device=working.device) + (0 if before is None else before.steps),
            signature=self.signature,
        )

    def _check_state(self, state: MemoryState, batch_size: int | None = None) -> None:
        if not isinstance(state, MemoryState):
            raise ValueError(f"state: expected a MemoryState, got {type(state).__name__}; begin with policy.initial_state()")
        batch_size = len(state) if batch_size is None else batch_size
        if state.signature != self.signature:
            raise ValueError(
                "state: it belongs to a policy of another architecture, other features or other statistics (signature "
                f"{state.signature}, this policy has {self.signature}); make one with policy.initial_state({batch_size})"
            )
        if state.working.device != self.device:
            raise ValueError(
                f"state: it is on {state.working.device}, the policy on {self.device}; move it with "
                f'state.to("{self.device}")'
            )
        if len(state) != batch_size:
            raise ValueError(
                f"state: it holds the memory of {len(state)} episodes, the observation has {batch_size}; slice it "
                f"(state[i:j]), join several (MemoryState.cat), or make one with policy.initial_state({batch_size})"
            )

    # Saving

    def save_pretrained(self, directory: str | Path) -> None:
        """Write `config.json`, `normalizer.json` and `model.safetensors`, without the training-only branch."""
        saving.save(self, Path(directory))

    @classmethod
    def from_pretrained(
        cls, path_or_hub_id: str | Path, *, device: torch.device | str = "cpu", with_control_jepa: bool = False
    ) -> ChameleonPolicy:
        """Load a policy from a directory or from the Hugging Face hub, in eval mode.

        Every key must match. `with_control_jepa=True` adds a fresh training branch for fine-tuning.
        """
        return saving.load(cls, path_or_hub_id, torch.device(device), with_control_jepa=with_control_jepa)
