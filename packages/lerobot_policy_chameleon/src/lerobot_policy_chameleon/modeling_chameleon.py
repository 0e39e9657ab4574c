"""Policies of chameleon_policy with LeRobot's interface.

    training   forward(batch)         windows of episodes -> loss
               update()               after every optimizer step
    control    select_action(batch)   one frame -> one action; the memory advances on every call
               reset()                a new memory

There are two copies of the policy: `model` is trained, `averaged` is its moving average and acts.
Both are in LeRobot's model.safetensors; the folder `chameleon` next to it holds `averaged` in the
format of `chameleon eval`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from lerobot.policies.pretrained import PreTrainedPolicy
from torch import Tensor

from chameleon_policy.baselines import method_named
from chameleon_policy.evaluate.executor import make_executor
from chameleon_policy.kernels import fuse
from chameleon_policy.policy import (
    InstructionEncoder,
    MemoryState,
    Observation,
    saving,
)
from chameleon_policy.provenance import git_revision
from chameleon_policy.train.optimizers import WeightAverage, matrices_of
from lerobot_policy_chameleon.carry import Carried, carry_over, start_from
from lerobot_policy_chameleon.configuration_chameleon import ChameleonConfig
from lerobot_policy_chameleon.dataset import complete
from lerobot_policy_chameleon.optimization import MATRICES
from lerobot_policy_chameleon.statistics import from_plain
from lerobot_policy_chameleon.windows import observation_of, window_of, with_emphasis

OWN_FORMAT = "chameleon"
"""The folder of a checkpoint that holds the averaged policy in chameleon_policy's format."""


class ChameleonPolicy(PreTrainedPolicy):
    """A policy for LeRobot, which keeps its memory between calls, as LeRobot expects."""

    config_class = ChameleonConfig
    name = "chameleon"

    def __init__(
        self, config: ChameleonConfig, dataset_stats: Any = None, dataset_meta: Any = None
    ) -> None:
        super().__init__(config)
        complete(config, dataset_stats, dataset_meta)
        self._encoder = InstructionEncoder(config.language) if config.language else None
        features = config.policy_features(self._encoder.feature if self._encoder else None)
        assert config.statistics is not None
        self.views = config.views()
        kind = method_named(config.method)
        kind.check_requirements()
        self.model = kind(config.policy_config(), features, from_plain(config.statistics))
        if config.fused:
            fuse(self.model)
        self.averaged = copy.deepcopy(self.model).requires_grad_(False).eval()
        self.register_buffer("updates", torch.zeros((), dtype=torch.int64))
        self._average = WeightAverage(self.model, config.ema_decay)
        self._average.weights = self.averaged.state_dict()
        self._carried: Carried | None = None
        self.reset()

    # Training

    def get_optim_params(self) -> list[dict[str, Any]]:
        """Return the trained parameters in two groups: matrices of layers, and the rest."""
        chosen = {id(matrix) for matrix in matrices_of(self.model)}
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        rest = [parameter for parameter in trained if id(parameter) not in chosen]
        matrices = [parameter for parameter in trained if id(parameter) in chosen]
        groups = [{"params": rest, MATRICES: False}, {"params": matrices, MATRICES: True}]
        return [group for group in groups if group["params"]]

    def forward(
        self, batch: dict[str, Any], reduction: str = "mean"
    ) -> tuple[Tensor, dict[str, float]]:
        """Return the loss over all real time steps of the windows, and its parts.

        In eval mode it is the loss of the averaged weights.
        """
        if reduction != "mean":
            raise ValueError(
                f"reduction: expected mean, got {reduction!r}; samples cannot be weighted"
            )
        config, policy = self.config, self.model if self.training else self.averaged
        window = window_of(batch, policy.features, self.views, before=config.n_obs_steps - 1)
        episodes = window.batch
        if policy.statistics.action is not None:
            limits = policy.statistics.action
            span = [high - low for low, high in zip(limits.low, limits.high, strict=True)]
            rest = (
                None
                if config.action_steps is None or config.rest_emphasis == 1
                else config.rest_emphasis
            )
            episodes = with_emphasis(window, span, config.horizon, rest)
        episodes = replace(
            episodes, observation=self._with_instruction(episodes.observation, batch)
        )
        carries = self.training and policy.carries_memory
        before, augmentation = start_from(self._carried if carries else None, policy, window.spans)
        loss = policy.loss(episodes, before, augmentation, keep_state=carries)
        if carries:
            self._carried = carry_over(loss, window.spans, window.whole)
        values = torch.stack([part.float() for part in loss.parts.values()]).tolist()
        metrics = dict(zip(loss.parts, values, strict=True))
        if math.isnan(metrics.get("decision_loss", 0.0)):
            del metrics["decision_loss"]  # the batch has no deciding step
        return loss.total, metrics

    def update(self) -> None:
        """Update Control-JEPA's target and the averaged weights after an optimizer step."""
        self.model.update_target()
        # anew each time, because moving the policy to another device replaces its tensors
        self._average.weights = self.averaged.state_dict()
        self._average.update(self.model, int(self.updates))
        self.updates += 1
        self.averaged.provenance = {"seed": torch.initial_seed(), "git_revision": git_revision()}

    def train(self, mode: bool = True) -> ChameleonPolicy:
        """Set the mode of the trained copy; the averaged one stays in eval mode."""
        super().train(mode)
        self.averaged.eval()
        return self

    # Control

    def reset(self) -> None:
        """Begin an episode with a new memory and without planned actions."""
        self._state: MemoryState | None = None
        self._executor = make_executor(self.averaged, self.config.n_action_steps)

    @torch.no_grad()
    def select_action(self, batch: dict[str, Any], **_: Any) -> Tensor:
        """Return the next action (B A); the memory observes every call, also within a chunk."""
        state = self._observe(batch)
        if self._executor.chunk_due:
            self._executor.add(self._act(state).unbind(1))
        action: Tensor = self._executor.next_action()
        return action

    @torch.no_grad()
    def predict_action_chunk(self, batch: dict[str, Any], **_: Any) -> Tensor:
        """Return a chunk (B H A) for this frame, which the memory observes.

        It must be called on every control step, or frames are missing in the memory.
        """
        return self._act(self._observe(batch))

    def _act(self, state: MemoryState) -> Tensor:
        # LeRobot converts actions to NumPy, which has no bfloat16
        return self.averaged.act(state).float()

    def _observe(self, batch: dict[str, Any]) -> MemoryState:
        observation = self._with_instruction(
            observation_of(batch, self.averaged.features, self.views), batch
        )
        robots = len(observation.proprioception)
        if self._state is None or len(self._state) != robots:
            self.reset()
            self._state = self.averaged.initial_state(robots)
        self._state = self.averaged.observe(observation, self._state)
        return self._state

    # Language

    def _with_instruction(self, observation: Observation, batch: Mapping[str, Any]) -> Observation:
        if self._encoder is None:
            return observation
        if "task" not in batch:
            raise ValueError(
                f"task: this policy reads instructions ({self.config.language}), and the batch has "
                "none"
            )
        texts = [batch["task"]] if isinstance(batch["task"], str) else list(batch["task"])
        return replace(observation, instruction=self._encoder.embed(texts).to(self.averaged.device))

    # Saving

    def _save_pretrained(
        self, save_directory: Path, state_dict: Mapping[str, Tensor] | None = None
    ) -> None:
        if state_dict is not None:
            raise ValueError(
                "weights that are spread over several processes (FSDP) are not supported; "
                "train with DDP"
            )
        super()._save_pretrained(save_directory)
        self.averaged.save_pretrained(save_directory / OWN_FORMAT)

    @classmethod
    def _load_as_safetensor(
        cls, model: ChameleonPolicy, model_file: str, map_location: str, strict: bool
    ) -> ChameleonPolicy:
        """Load all weights, or raise a ValueError; LeRobot would only log missing ones."""
        loaded, expected = safetensors.torch.load_file(model_file), model.state_dict()
        wrong = {
            "missing": sorted(expected.keys() - loaded.keys()),
            "unknown": sorted(loaded.keys() - expected.keys()),
            "of another shape": sorted(
                key
                for key in expected.keys() & loaded.keys()
                if expected[key].shape != loaded[key].shape
            ),
        }
        if any(wrong.values()):
            listed = "; ".join(
                f"{word}: {', '.join(names[:3])}{', ...' if len(names) > 3 else ''} ({len(names)})"
                for word, names in wrong.items()
                if names
            )
            raise ValueError(
                f"{model_file} does not belong to the config.json next to it. {listed}. Copy the "
                "checkpoint again"
            )
        model.load_state_dict(loaded)
        own = Path(model_file).parent / OWN_FORMAT
        if own.is_dir():  # not in a file from the hub alone
            model.averaged.provenance = saving.describe(own)[1]["provenance"]
        return model
