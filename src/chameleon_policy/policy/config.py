"""The size of the policy and its objective; the shapes of the data are in `features.py`.

Every class is frozen, keyword-only and checked on construction. `from_json` refuses unknown keys,
so that a misspelt option cannot silently become a default.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import reprlib
import types
import typing
from dataclasses import dataclass, field
from typing import Any, TypeVar

ConfigT = TypeVar("ConfigT")
LARGEST, LONGEST, DEEPEST, MOST_STEPS = 65_536, 4_096, 256, 10_000
"""Largest width of anything, time steps that a layer takes at once, number of layers, and number of
sampling steps. Nothing sensible is near them; a config.json that asks for more is refused before it
is built.
"""


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


def _require_counts(config: object, *names: str, at_most: int = LARGEST) -> None:
    for name in names:
        value = getattr(config, name)
        for count in value if isinstance(value, tuple) else (value,):
            whole = isinstance(count, int) and not isinstance(count, bool)
            _require(
                whole and count >= 1,
                f"{type(config).__name__}.{name} must be at least 1, got {value!r}",
            )
            _require(
                count <= at_most,
                f"{type(config).__name__}.{name} must be at most {at_most}, got {value!r:.80}",
            )


def _require_not_negative(config: object, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        _require(
            0 <= value < math.inf,
            f"{type(config).__name__}.{name} must be finite and not negative, got {value}",
        )


@dataclass(frozen=True, kw_only=True)
class SSMConfig:
    """One Mamba2-style selective state-space layer."""

    expand: int
    """Inner width as a multiple of the model's width."""
    state: int
    """State dimension of every channel."""
    head_dim: int = 64
    """Channels per head; a head has one decay."""
    convolution: int = 4
    """Width of the causal convolution before the recurrence."""
    half_life: tuple[float, float]
    """Shortest and longest half-life at initialisation, in control steps, spread evenly in log over
    the heads. They hold for the mean of Delta over inputs of unit variance, without a limit; on a
    constant input the half-life of a head may be far from this.
    """
    half_life_limit: float | None = None
    """H_max in steps: the longest half-life of any head, whatever the input; None: no limit."""
    selectivity: float = 3.0
    """Standard deviation of the input of softplus that makes Delta, at initialisation and over
    inputs of unit variance.
    """
    chunk: int = 64
    """Time steps that the parallel scan handles in one matrix product."""

    def __post_init__(self) -> None:
        _require_counts(self, "expand", "state", "head_dim")
        _require_counts(self, "convolution", "chunk", at_most=LONGEST)
        _require_not_negative(self, "selectivity")
        shortest, longest = self.half_life
        _require(
            0 < shortest <= longest < math.inf,
            "SSMConfig.half_life must be (shortest, longest) with 0 < shortest <= longest, got "
            f"{self.half_life}",
        )
        limit = self.half_life_limit
        _require(
            limit is None or longest <= limit < math.inf,
            "SSMConfig.half_life_limit must be None or at least the longest half_life "
            f"({longest}), got {limit}",
        )

    def limited(self, limit: float) -> SSMConfig:
        """Return this layer with H_max = `limit` (inf: none).

        Half-lives at initialisation are cut to the limit.
        """
        shortest, longest = self.half_life
        _require(
            limit >= shortest,
            f"half_life_limit must be at least the shortest half-life to begin with ({shortest}), "
            f"got {limit}",
        )
        return dataclasses.replace(
            self,
            half_life=(shortest, min(longest, limit)),
            half_life_limit=None if limit == math.inf else limit,
        )


@dataclass(frozen=True, kw_only=True)
class ObjectiveConfig:
    """The training objective: the weights of Eqs. 13 and 17 and the random draws of training."""

    control_jepa_weight: float = 0.05
    """alpha, Eq. 17."""
    horizons: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    """K, Eq. 13."""
    horizon_weights: tuple[float, ...] = (1.0, 1.0, 1.0, 0.5, 0.5, 0.25)
    """lambda_k, Eq. 13."""
    variance_weight: float = 0.05
    """lambda_var, Eq. 13."""
    variance_target: float = 1.0
    """gamma, the standard deviation below which the variance term acts."""
    target_momentum: float = 0.99
    """EMA momentum of the target branch."""
    proprioception_noise: float = 0.1
    """Standard deviation, in normalised units, of the noise on proprioception: one draw per episode
    plus one per step.
    """
    flow_time_power: float = 1.0
    """Flow time is u ** power with u uniform; above 1 it favours the noise end. The paper has 1."""
    action_steps: int | None = None
    """Time steps per episode that carry the action loss, drawn anew in each batch; None: all."""

    def __post_init__(self) -> None:
        _require(
            len(self.horizons) == len(self.horizon_weights) > 0,
            f"ObjectiveConfig needs one weight per horizon, got {len(self.horizons)} horizons and "
            f"{len(self.horizon_weights)} weights",
        )
        _require_counts(self, "horizons")
        _require(
            all(0 < weight < math.inf for weight in self.horizon_weights),
            f"ObjectiveConfig.horizon_weights must be positive, got {self.horizon_weights}",
        )
        _require_not_negative(
            self,
            "control_jepa_weight",
            "variance_weight",
            "variance_target",
            "proprioception_noise",
        )
        _require(
            0 <= self.target_momentum <= 1,
            f"ObjectiveConfig.target_momentum must lie in [0, 1], got {self.target_momentum}",
        )
        _require(
            self.flow_time_power > 0,
            f"ObjectiveConfig.flow_time_power must be positive, got {self.flow_time_power}",
        )
        _require(
            self.action_steps is None or self.action_steps >= 1,
            f"ObjectiveConfig.action_steps must be at least 1 or None, got {self.action_steps}",
        )


@dataclass(frozen=True, kw_only=True)
class PolicyConfig:
    """The size of a Chameleon policy.

    Use a preset (`presets.py`) and `dataclasses.replace` to change it.
    """

    preset: str
    """Name of the preset that this configuration started from."""
    width: int
    """d, the width of every token."""
    heads: int = 8
    """Number of attention heads, everywhere."""
    layers: int = 2
    """L, the number of memory layers."""
    feedforward_ratio: int = 4
    """Hidden width of every feed-forward sublayer, as a multiple of the width."""
    encoder_channels: tuple[int, int, int, int] = (64, 128, 256, 512)
    """Channels of the four stages of the per-view residual encoder."""
    encoder_blocks: tuple[int, int, int, int] = (2, 2, 2, 2)
    """Residual blocks of each stage; (2, 2, 2, 2) is ResNet-18."""
    slow: SSMConfig
    """SSM_slow, Eq. 6: carries the traces through the episode."""
    fast: SSMConfig
    """SSM_fast, Eq. 10: carries the working state."""
    policy_tokens: int = 8
    """n_c, Eq. 14."""
    head_layers: int = 6
    """Transformer layers of the action head."""
    sampling_steps: int = 50
    """Default number of Euler steps from noise to an action chunk."""
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)

    def __post_init__(self) -> None:
        _require_counts(
            self, "width", "heads", "feedforward_ratio", "policy_tokens", "encoder_channels"
        )
        _require_counts(self, "layers", "head_layers", "encoder_blocks", at_most=DEEPEST)
        _require_counts(self, "sampling_steps", at_most=MOST_STEPS)
        _require(self.width % 2 == 0, f"PolicyConfig.width must be even, got {self.width}")
        for channels in self.encoder_channels:
            _require(
                channels < 16 or channels % 16 == 0,
                "PolicyConfig.encoder_channels from 16 on must be multiples of 16, got "
                f"{self.encoder_channels}",
            )
        _require(
            self.width % self.heads == 0,
            f"PolicyConfig.width ({self.width}) must be a multiple of PolicyConfig.heads "
            f"({self.heads})",
        )
        for name in ("slow", "fast"):
            ssm: SSMConfig = getattr(self, name)
            _require(
                ssm.expand * self.width % ssm.head_dim == 0,
                f"PolicyConfig.{name}: expand x width ({ssm.expand} x {self.width}) must be a "
                f"multiple of head_dim ({ssm.head_dim})",
            )


def to_json(config: Any) -> dict[str, Any]:
    """Return the dataclass as plain dictionaries, lists, numbers and strings."""
    return dataclasses.asdict(config)


def from_json(cls: type[ConfigT], data: Any, where: str = "") -> ConfigT:
    """Rebuild the dataclass `cls` from `to_json`; ValueError for a bad key or type."""
    where = where or cls.__name__
    if not isinstance(data, dict):
        raise ValueError(f"{where}: expected an object with named values, got {reprlib.repr(data)}")
    hints = typing.get_type_hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    for key in data:
        if key not in fields:
            close = difflib.get_close_matches(key, fields, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise ValueError(
                f"{where}: unknown key {reprlib.repr(key)}.{hint} Known keys: {', '.join(fields)}"
            )
    for name, spec in fields.items():
        optional = (
            spec.default is not dataclasses.MISSING
            or spec.default_factory is not dataclasses.MISSING
        )
        if name not in data and not optional:
            raise ValueError(
                f"{where}: the key {name!r} is missing. Known keys: {', '.join(fields)}"
            )
    return cls(**{key: _decode(hints[key], value, f"{where}.{key}") for key, value in data.items()})


def _decode(kind: Any, value: Any, where: str) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in arguments:
            return None
        (kind,) = (a for a in arguments if a is not type(None))
        return _decode(kind, value, where)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise ValueError(f"{where}: expected a list, got {reprlib.repr(value)}")
        variable_length = len(arguments) == 2 and arguments[1] is Ellipsis
        if not variable_length and len(value) != len(arguments):
            raise ValueError(
                f"{where}: expected {len(arguments)} values, got {len(value)}: "
                f"{reprlib.repr(value)}"
            )
        kinds = [arguments[0]] * len(value) if variable_length else arguments
        return tuple(
            _decode(k, v, f"{where}[{i}]")
            for i, (k, v) in enumerate(zip(kinds, value, strict=True))
        )
    if dataclasses.is_dataclass(kind):
        return from_json(typing.cast(type[Any], kind), value, where)
    accepted = (int, float) if kind is float else kind
    if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"{where}: expected {kind.__name__}, got {reprlib.repr(value)}")
    return value
