"""The Chameleon policy: observation -> event tokens -> memory -> working state -> actions (Eq. 1).

    training   loss(batch)                    whole padded episodes at once
    control    observe(observation, state)    every control step; returns the next memory state
               act(state)                     when a chunk of actions is due

Decisions
- The memory is a value. `observe` returns a new `MemoryState` and keeps nothing; an episode starts
  with a new state.
- The memory advances on every control step, also while a chunk is being executed.
- Control and training run the same code: a control step is a sequence of length one.
- Observations come in and actions go out in the robot's units; normalisation happens inside.
- `visuomotor.py` holds what Chameleon shares with the methods it is compared with.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from chameleon_policy.policy.action_flow import ActionFlow
from chameleon_policy.policy.checkpointing import run_layer
from chameleon_policy.policy.config import PolicyConfig
from chameleon_policy.policy.control_jepa import ControlJEPA
from chameleon_policy.policy.features import Features
from chameleon_policy.policy.initialization import initialise
from chameleon_policy.policy.inspection import Inspection, inspect
from chameleon_policy.policy.memory import ControlContext, LayerOutput, MemoryLayer
from chameleon_policy.policy.normalizer import Statistics
from chameleon_policy.policy.observation import Observation
from chameleon_policy.policy.state import Memory, MemoryState
from chameleon_policy.policy.visuomotor import FlowPolicy, Remembered, Terms


class ChameleonPolicy(FlowPolicy):
    """A visuomotor policy with control-indexed prospective memory.

    `with_control_jepa` adds the training-only branch (predictor and EMA target), which `loss`
    needs.
    """

    method: ClassVar[str] = "chameleon"
    training_only: ClassVar[tuple[str, ...]] = ("control_jepa.",)
    has_working_state: ClassVar[bool] = True

    def __init__(
        self,
        config: PolicyConfig,
        features: Features,
        statistics: Statistics | None = None,
        *,
        with_control_jepa: bool = True,
    ) -> None:
        super().__init__(config, features, statistics)
        self.memory = nn.ModuleList(self._make_layer() for _ in range(config.layers))
        self.action_flow = ActionFlow(config, features.action, features.horizon)
        initialise(self)
        self.control_jepa: ControlJEPA | None = None
        if with_control_jepa:
            self.add_training_branch()

    def _make_layer(self) -> MemoryLayer:
        """Make one of the L memory layers; ablations override it."""
        return MemoryLayer(self.config)

    @property
    def layers(self) -> list[MemoryLayer]:
        """The L memory layers."""
        return list(self.memory)  # type: ignore[arg-type]

    # Memory

    def remember(
        self,
        tokens: Tensor,
        state: MemoryState | None,
        *,
        control_context: Sequence[Tensor | None] | None = None,
    ) -> tuple[list[LayerOutput], MemoryState]:
        """Run event tokens (B T N D) through the memory layers: all outputs and the new memory.

        Without a state, the tokens begin an episode. A given `control_context` replaces the layers'
        own.
        """
        memory = None if state is None else state.layers
        outputs = self._through_layers(tokens, memory, control_context=control_context)
        return outputs, self._memory_after(_remembered(outputs, keep=True), state)

    def inspect(
        self,
        observation: Observation,
        state: MemoryState | None = None,
        *,
        control_context: Sequence[Tensor | None] | None = None,
    ) -> Inspection:
        """Observe time steps (B T ...) and return all intermediate results, see `inspection.py`."""
        return inspect(self, observation, state, control_context)

    def _initial_memory(self, batch_size: int) -> Memory:
        return tuple(layer.initial_state(batch_size, self.features.tokens) for layer in self.layers)

    def _remember(
        self, tokens: Tensor, memory: Memory | None, steps: Tensor | None, *, keep: bool
    ) -> Remembered:
        return _remembered(self._through_layers(tokens, memory, keep_state=keep), keep=keep)

    def _through_layers(
        self,
        tokens: Tensor,
        memory: Memory | None,
        *,
        keep_state: bool = True,
        control_context: Sequence[Tensor | None] | None = None,
    ) -> list[LayerOutput]:
        outputs: list[LayerOutput] = []
        for index, layer in enumerate(self.layers):
            output: LayerOutput = run_layer(
                layer,
                tokens,
                None if memory is None else memory[index],
                forget=self.forget_activations,
                write_back=index < self.config.layers - 1,
                keep_state=keep_state,
                control_context=None if control_context is None else control_context[index],
            )
            outputs.append(output)
            if output.tokens is not None:
                tokens = output.tokens
        return outputs

    # Training

    def _auxiliary(self, remembered: Remembered, valid: Tensor) -> Terms:
        """Compute alpha L_CJEP of Eq. 17."""
        assert remembered.bound is not None
        alignment, variance = self._training_branch(remembered.context, remembered.bound, valid)
        objective = self.config.objective
        prospective = alignment + objective.variance_weight * variance
        parts = {"control_jepa": prospective, "alignment": alignment, "variance": variance}
        return Terms(objective.control_jepa_weight * prospective, parts)

    def update_target(self) -> None:
        """Move Control-JEPA's EMA target; call it once after every optimizer step."""
        self._training_branch.update_target(self._control_context)

    def add_training_branch(self) -> None:
        """Add Control-JEPA with its target; a fused policy needs `fuse` again afterwards."""
        weight = self.action_flow.action_out.weight
        branch = ControlJEPA(self.config, self._control_context)
        initialise(branch.predictor)
        self.control_jepa = branch.to(weight.device, weight.dtype)

    @property
    def _control_context(self) -> ControlContext:
        """The last layer's control-context path, which Control-JEPA's target follows."""
        return self.layers[-1].recall.control_context

    @property
    def _training_branch(self) -> ControlJEPA:
        if self.control_jepa is None:
            raise ValueError(
                "this policy was built for control, without its training branch; use "
                "ChameleonPolicy.from_pretrained(path, with_control_jepa=True) to train it"
            )
        return self.control_jepa

    # Saving

    @classmethod
    def for_control(cls, config: PolicyConfig, features: Features, statistics: Statistics) -> Self:
        """Make a policy without Control-JEPA."""
        return cls(config, features, statistics, with_control_jepa=False)

    @classmethod
    def from_pretrained(
        cls,
        path_or_hub_id: str | Path,
        *,
        device: torch.device | str = "cpu",
        with_control_jepa: bool = False,
    ) -> Self:
        """Load a policy from a directory, or `hf:owner/name` from the hub, in eval mode.

        Every key must match. `with_control_jepa=True` adds a fresh training branch for fine-tuning.
        """
        policy = super().from_pretrained(path_or_hub_id, device=device)
        if with_control_jepa:  # after the weights are loaded: the target starts as a copy
            policy.add_training_branch()
        return policy


def _remembered(outputs: list[LayerOutput], *, keep: bool) -> Remembered:
    states = tuple(output.state for output in outputs if output.state is not None)
    return Remembered(outputs[-1].working, states if keep else None, outputs[-1].bound)
