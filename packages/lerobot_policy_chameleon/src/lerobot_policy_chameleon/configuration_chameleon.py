"""The options of `--policy.type=chameleon`, and chameleon_policy's configuration from them."""

# Without `from __future__ import annotations`: LeRobot's parser reads the types of the fields.
import math
from dataclasses import dataclass, field, replace

from lerobot.configs.policies import PreTrainedConfig
from lerobot.configs.types import FeatureType, NormalizationMode, PolicyFeature
from lerobot.optim.optimizers import AdamWConfig, OptimizerConfig

from chameleon_policy.baselines import method_named
from chameleon_policy.policy import Features, ObjectSlots, PolicyConfig, View, preset
from chameleon_policy.policy.features import Language
from lerobot_policy_chameleon.optimization import CosineConfig, MuonConfig
from lerobot_policy_chameleon.windows import ACTION, OBJECTS, STATE

OPTIMIZERS = ("adamw", "muon")
PRECISIONS = ("float32", "bfloat16")


def _identity() -> dict[str, NormalizationMode]:
    return dict.fromkeys(("VISUAL", "STATE", "ENV", "ACTION"), NormalizationMode.IDENTITY)


@PreTrainedConfig.register_subclass("chameleon")
@dataclass
class ChameleonConfig(PreTrainedConfig):
    """Options of a Chameleon policy on LeRobot's command line.

    LeRobot fills in the features, and the policy its statistics, when they are known.
    """

    # The policy
    preset: str = "small"
    """Size of the policy: nano, small or paper."""
    method: str = "chameleon"
    """chameleon, or a baseline or ablation such as lstm (see chameleon_policy.baselines)."""
    horizon: int = 16
    """Actions of a chunk."""
    n_action_steps: int | None = None
    """Actions of a chunk to carry out before the next one; None: half of them, or one for ACT."""
    sampling_steps: int = 8
    """Euler steps of a chunk."""
    object_size: int | None = None
    """Numbers of an object slot in observation.environment_state; None: by the dataset's names, or
    a single slot.
    """
    language: str | None = None
    """Encoder of the task's text, such as distilbert-base-uncased or minilm; None: no language."""

    # Windows
    n_obs_steps: int = 64
    """Frames of a training window up to the present one. Training does not reach further back, so
    give the length of an episode if the computer's memory suffices.
    """
    n_future_steps: int = 0
    """Frames of a training window after the present one. With as many as before it, every window
    is a whole episode.
    """

    # The objective
    action_steps: int | None = None
    """Time steps of a window that carry the action loss, drawn anew each time; None: all."""
    rest_emphasis: float = 1.0
    """Relative frequency of time steps at which the robot only waits among them."""
    flow_time_power: float = 1.0
    proprioception_noise: float = 0.1
    control_jepa_weight: float = 0.05
    ema_decay: float = 0.995
    """Decay of the moving average of the weights, which acts."""

    fused: bool = True
    """Compute with fused modules where they can be used: bfloat16, on a GPU, with Triton."""
    dtype: str = "float32"
    """bfloat16: mixed precision in training (from LeRobot 0.6 on; before, use `accelerate
    launch`).
    """

    # The optimizer
    optimizer: str = "muon"
    """muon: orthogonalised momentum for matrices and AdamW for the rest; or adamw, the paper's."""
    optimizer_lr: float = 1e-3
    optimizer_betas: tuple[float, float] = (0.9, 0.99)
    optimizer_weight_decay: float = 1e-6
    optimizer_grad_clip_norm: float = 1.0
    scheduler_warmup_steps: int = 100
    """Steps of warm-up; then the learning rate follows a cosine to zero at --steps."""

    # Filled in, and saved with the weights
    statistics: dict[str, dict[str, list[float]]] | None = None
    """Statistics for normalisation; None: computed from the dataset."""
    half_life_limit: float | None = None
    """Longest half-life of the working state in control steps; inf: no limit. None: the preset's
    for a new policy, none for a policy that was saved before this option existed.
    """
    normalization_mapping: dict[str, NormalizationMode] = field(default_factory=_identity)
    """LeRobot's own normalisation is not used."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n_action_steps is None:
            self.n_action_steps = 1 if self.method == "act" else max(1, self.horizon // 2)
        for name, least in (
            ("horizon", 1),
            ("n_action_steps", 1),
            ("sampling_steps", 1),
            ("n_obs_steps", 1),
            ("n_future_steps", 0),
        ):
            _require(name, getattr(self, name), getattr(self, name) >= least, f"at least {least}")
        _require(
            "n_action_steps",
            self.n_action_steps,
            self.n_action_steps <= self.horizon,
            f"at most the horizon, {self.horizon}",
        )
        _require(
            "object_size",
            self.object_size,
            self.object_size is None or self.object_size >= 1,
            "at least 1",
        )
        _require("rest_emphasis", self.rest_emphasis, 0 < self.rest_emphasis <= 1, "in (0, 1]")
        if self.rest_emphasis != 1 and self.action_steps is None:
            raise ValueError(
                "--policy.rest_emphasis: time steps are drawn only with --policy.action_steps; "
                "give that, too"
            )
        _require("ema_decay", self.ema_decay, 0 <= self.ema_decay < 1, "in [0, 1)")
        _require(
            "optimizer",
            self.optimizer,
            self.optimizer in OPTIMIZERS,
            f"one of {', '.join(OPTIMIZERS)}",
        )
        _require("dtype", self.dtype, self.dtype in PRECISIONS, f"one of {', '.join(PRECISIONS)}")
        if any(
            mode is not NormalizationMode.IDENTITY for mode in self.normalization_mapping.values()
        ):
            raise ValueError(
                "--policy.normalization_mapping: expected IDENTITY for all, got "
                f"{self.normalization_mapping}; this policy normalises inside, with statistics of "
                "its own"
            )
        method_named(self.method)
        self.policy_config()

    # For LeRobot

    @property
    def observation_delta_indices(self) -> list[int]:
        """All frames of a window, on which memory is trained."""
        return list(range(1 - self.n_obs_steps, self.n_future_steps + 1))

    @property
    def action_delta_indices(self) -> list[int]:
        """Actions of a chunk for every frame of a window."""
        return list(range(1 - self.n_obs_steps, self.n_future_steps + self.horizon))

    @property
    def reward_delta_indices(self) -> None:
        """None: the policy uses no rewards."""
        return

    def get_optimizer_preset(self) -> OptimizerConfig:
        """Return the options of the chosen optimizer."""
        kind = MuonConfig if self.optimizer == "muon" else AdamWConfig
        return kind(
            lr=self.optimizer_lr,
            betas=tuple(self.optimizer_betas),
            weight_decay=self.optimizer_weight_decay,
            grad_clip_norm=self.optimizer_grad_clip_norm,
        )

    def get_scheduler_preset(self) -> CosineConfig:
        """Return the options of the schedule: warm-up, then a cosine to zero."""
        return CosineConfig(num_warmup_steps=self.scheduler_warmup_steps)

    def validate_features(self) -> None:
        """Raise a ValueError if the policy cannot be built for these features."""
        self.policy_features()

    # For chameleon_policy

    def policy_config(self) -> PolicyConfig:
        """Return the configuration of the policy."""
        config = preset(self.preset)
        objective = replace(
            config.objective,
            action_steps=self.action_steps,
            flow_time_power=self.flow_time_power,
            proprioception_noise=self.proprioception_noise,
            control_jepa_weight=self.control_jepa_weight,
        )
        fast = config.fast.limited(
            math.inf if self.half_life_limit is None else self.half_life_limit
        )
        return replace(config, fast=fast, sampling_steps=self.sampling_steps, objective=objective)

    def views(self) -> dict[str, str]:
        """Return LeRobot's key of every view, such as observation.images.third of `third`."""
        keys = sorted(self.image_features)
        short = {key: key.rpartition(".")[2] for key in keys}
        taken = list(short.values())
        return {
            name if taken.count(name) == 1 else key.removeprefix("observation."): key
            for key, name in short.items()
        }

    def policy_features(self, language: Language | None = None) -> Features:
        """Return the features of the policy; object slots are used only without cameras."""
        state, action, views = self.robot_state_feature, self.action_feature, self.views()
        for key, feature in ((STATE, state), (ACTION, action)):
            if feature is None or len(feature.shape) != 1:
                got = "nothing" if feature is None else f"the shape {tuple(feature.shape)}"
                raise ValueError(
                    f"{key}: expected a vector, got {got}; record it, or rename the feature in the "
                    "dataset"
                )
        slots = (
            None if views or self.env_state_feature is None else self._slots(self.env_state_feature)
        )
        if not views and slots is None:
            raise ValueError(
                f"expected a camera (observation.images.<name>) or {OBJECTS}, got "
                f"{', '.join(self.input_features or {})}: the policy would see nothing"
            )
        return Features(
            views=tuple(_view(name, key, self.image_features[key]) for name, key in views.items()),
            objects=slots,
            proprioception=state.shape[0],
            action=action.shape[0],
            horizon=self.horizon,
            language=language,
        )

    def _slots(self, feature: PolicyFeature) -> ObjectSlots:
        (numbers,) = feature.shape
        size = self.object_size or numbers
        if numbers % size:
            raise ValueError(
                f"--policy.object_size: {OBJECTS} has {numbers} numbers, which are no slots of "
                f"{size}; give a divisor of it"
            )
        return ObjectSlots(count=numbers // size, size=size)


def _require(name: str, value: object, condition: bool, expected: str) -> None:
    if not condition:
        raise ValueError(f"--policy.{name} must be {expected}, got {value}")


def _view(name: str, key: str, feature: PolicyFeature) -> View:
    assert feature.type is FeatureType.VISUAL
    if len(feature.shape) != 3 or feature.shape[0] != 3:
        raise ValueError(
            f"{key}: expected images of shape (3, height, width), got {tuple(feature.shape)}"
        )
    return View(name=name, height=feature.shape[1], width=feature.shape[2])
