"""Configuration of training: `TrainingConfig` says how, `RunConfig` also what and on which data.

The defaults are the paper's. The policy has a configuration of its own, in `policy/config.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import tyro

from chameleon_policy.data.episodes import Keys
from chameleon_policy.policy import ObjectiveConfig
from chameleon_policy.policy.presets import PresetName
from chameleon_policy.train.sampling import Emphasis

Precision = Literal["auto", "bf16", "float32"]
OptimizerName = Literal["adamw", "muon"]


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """Settings of a training, for any data and method.

    Give the budget as `steps` or as `minutes`; the learning rate falls to zero at its end.
    """

    steps: int | None = None
    """Budget in optimizer steps."""
    minutes: float | None = None
    """Budget in minutes of training, without the time of evaluations during training."""
    batch: int = 64
    """Episodes in one optimizer step, over all processes."""
    accumulate: int = 1
    """Sub-batches into which each process divides its share of the batch; more of them need less
    memory."""
    optimizer: OptimizerName = "adamw"
    """The paper's AdamW; or muon: orthogonalised momentum for matrices and AdamW for the rest
    (faster for nano; see docs/log)."""
    learning_rate: float = 1e-4
    """Largest learning rate."""
    warmup_steps: int = 100
    """Steps over which the learning rate rises; then it falls along a cosine."""
    weight_decay: float = 1e-6
    """Weight decay of both optimizers."""
    beta2: float = 0.999
    """Decay of AdamW's second moment."""
    gradient_clip: float = 10.0
    """Largest norm of the gradient."""
    ema_decay: float = 0.995
    """Decay of the averaged weights, which are evaluated; smaller during the first steps."""
    precision: Precision = "auto"
    """bf16 autocast, or float32; auto: bf16 on a GPU."""
    forget_activations: bool = False
    """Recompute activations in the backward pass instead of keeping them, for episodes that are too
    long for the memory."""
    graphs: bool = True
    """On a GPU, record the forward and backward pass of each shape of batch as a CUDA graph and
    replay it. Windows and accumulation run without graphs."""
    fused: bool = True
    """On a GPU, replace the policy's modules by their fused twins (`kernels.fuse`), which compute
    in half precision."""
    window: int | None = None
    """Time steps in one backward pass: longer episodes are cut, and the memory is carried from
    window to window. Control-JEPA looks ahead within a window only."""
    decision_emphasis: float = 1.0
    """Weight with which a time step just before a decision is drawn for the action loss, relative
    to one at which the robot moves (needs --action-steps)."""
    rest_emphasis: float = 1.0
    """The same weight for time steps at which the robot rests."""
    annotated_decisions: bool = False
    """Take the moments of decision from the annotations of a recording of Camo, instead of finding
    them in the actions: where the robot rests and then sets off."""
    equal_frames: bool = False
    """Show about equally many frames of every task (instruction): episodes of tasks with few frames
    occur several times in a pass."""
    uneven_pace: float = 0.0
    """Probability that a time step before the robot first sets off is left out, and that it is
    shown twice, drawn anew each time."""
    longer_retention: int = 0
    """Largest number of time steps by which the wait before the robot first sets off is extended,
    drawn anew each time."""
    mirror: bool = False
    """Mirror half of the episodes, drawn anew each time (recordings of Camo with pictures)."""
    tint: float = 0.0
    """Multiply red, green and blue of an episode's pictures by factors that differ from 1 by up to
    this much, drawn anew each time."""
    warp: float = 0.0
    """Stretch, rotate and shear an episode's pictures by up to this share, drawn anew each time."""
    plain_steps: int = 0
    """Steps at the beginning in which episodes keep their pace and their pictures; a training with
    no more steps than that has no augmentation."""
    seed: int = 0
    """Seed of the weights, the order of the episodes and all noise."""
    checkpoint_minutes: float = 5.0
    """Minutes between two checkpoints. One is also written at the end and on Ctrl-C or SIGTERM."""
    checkpoint_steps: int | None = None
    """Steps between two checkpoints, instead of minutes."""
    keep_checkpoints: int = 3
    """Number of checkpoints to keep."""
    log_steps: int = 10
    """Steps between two lines of metrics.jsonl."""
    watch_times: int = 0
    """Number of evaluations during training, spread evenly over the budget: rollouts on training
    seeds, and held-out demonstrations."""
    watch_episodes: int = 24
    """Rollouts of each such evaluation; 0: none."""

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.minutes is None):
            raise ValueError("give the budget as --steps or as --minutes, one of the two")
        counts = ("batch", "accumulate", "keep_checkpoints", "log_steps")
        self._check("at least 1", lambda value: value >= 1, *counts)
        self._check("at least 1", lambda value: value >= 1, "steps", "window", "checkpoint_steps")
        lengths = ("warmup_steps", "plain_steps", "longer_retention")
        self._check("at least 0", lambda value: value >= 0, *lengths, "watch_times")
        self._check(
            "at least 0", lambda value: value >= 0, "watch_episodes", "seed", "weight_decay"
        )
        sizes = ("minutes", "checkpoint_minutes", "learning_rate", "gradient_clip")
        weights = ("decision_emphasis", "rest_emphasis")
        self._check("positive", lambda value: 0 < value < math.inf, *sizes, *weights)
        self._check("between 0 and 0.5", lambda value: 0 <= value <= 0.5, "uneven_pace")
        # from 0.5 on, a warp could shrink a picture to a line
        self._check("in [0, 0.5)", lambda value: 0 <= value < 0.5, "warp")
        self._check("in [0, 1)", lambda value: 0 <= value < 1, "tint", "ema_decay", "beta2")
        optimizers, precisions = get_args(OptimizerName), get_args(Precision)
        self._check(f"one of {', '.join(optimizers)}", lambda name: name in optimizers, "optimizer")
        self._check(f"one of {', '.join(precisions)}", lambda name: name in precisions, "precision")

    def _check(self, expected: str, holds: Callable[[Any], bool], *names: str) -> None:
        """Raise a ValueError unless the settings with these names are None or as expected."""
        for name in names:
            value = getattr(self, name)
            if value is not None and not holds(value):
                raise ValueError(f"--{name.replace('_', '-')} must be {expected}, got {value}")

    @property
    def varies_pace(self) -> bool:
        """Whether episodes are shown at another pace than recorded."""
        return bool(self.uneven_pace or self.longer_retention)

    @property
    def varies_appearance(self) -> bool:
        """Whether episodes are mirrored, tinted or warped."""
        return bool(self.mirror or self.tint or self.warp)

    @property
    def uses_graphs(self) -> bool:
        """Whether a GPU records the steps as CUDA graphs."""
        return self.graphs and self.window is None and self.accumulate == 1

    @property
    def emphasis(self) -> Emphasis | None:
        """Weights of moving, resting and deciding steps; None if all are alike."""
        weights = (1.0, self.rest_emphasis, self.decision_emphasis)
        return None if weights == (1.0, 1.0, 1.0) else weights

    def rate(self, step: int, share: float) -> float:
        """Return the learning rate of a step when `share` of the budget is spent.

        It rises linearly during the warm-up, then falls along a cosine to zero.
        """
        warmup = min(1.0, (step + 1) / max(1, self.warmup_steps))
        return self.learning_rate * warmup * 0.5 * (1 + math.cos(math.pi * min(1.0, share)))


SMALLEST_SIDE = 16
"""Pixels of the smallest --size."""


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Configuration of a run: what to train, how, and on which data."""

    data: Annotated[
        tyro.conf.Positional[tuple[Path, ...]],
        tyro.conf.arg(metavar="DATA [DATA ...]", help_behavior_hint="(required)"),
    ]
    """LeRobot v3 folders, robomimic HDF5 files, or Diffusion Policy zarrs; several are trained on
    together."""
    held_out: tuple[Path, ...] = ()
    """Demonstrations that are not trained on. Their losses, and how well a linear probe reads the
    answers of decisions from the memory, are written to metrics.jsonl --watch-times times."""
    tell_answer: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Give the policy the answer, to see where it fails for other reasons than its memory
    (recordings of Camo)."""
    method: str = "chameleon"
    """chameleon, or a method to compare it with: no-memory, act, lstm ... (docs/baselines.md)."""
    preset: PresetName = "small"
    """Size of the policy."""
    horizon: int = 16
    """Actions in one predicted chunk; half of them are executed before the next one."""
    half_life_limit: float | None = None
    """Most control steps over which the working state may keep half of what it holds; inf: no
    limit, None: the preset's."""
    objective: Annotated[ObjectiveConfig, tyro.conf.OmitArgPrefixes] = field(
        default_factory=ObjectiveConfig
    )
    language: str | None = None
    """Text encoder for the dataset's instructions: distilbert-base-uncased, or minilm offline;
    None: the policy gets none."""
    start_from: str | None = None
    """Saved policy to start from (folder, or hf:owner/name); it decides method, preset, horizon and
    limit."""
    keys: Annotated[Keys, tyro.conf.OmitArgPrefixes] = field(default_factory=Keys)
    size: int = 224
    """Largest side of a picture in pixels: larger pictures are scaled down while they are read,
    others stay as they are. Scale the robot's pictures to the same size."""
    training: Annotated[TrainingConfig, tyro.conf.OmitArgPrefixes]

    def __post_init__(self) -> None:
        training = self.training
        if self.size < SMALLEST_SIDE:
            raise ValueError(f"--size must be at least {SMALLEST_SIDE} pixels, got {self.size}")
        if training.emphasis is not None and self.objective.action_steps is None:
            raise ValueError(
                "--decision-emphasis and --rest-emphasis choose among time steps: say how many "
                "with --action-steps"
            )
        if self.held_out and not training.watch_times:
            raise ValueError(
                "--held-out is evaluated from time to time: say how often with --watch-times"
            )
        if training.watch_times and not (self.held_out or training.watch_episodes):
            raise ValueError(
                "--watch-times: there is nothing to evaluate; give --held-out, or --watch-episodes "
                "above 0"
            )
        for path in self.held_out:
            if path.resolve() in {data.resolve() for data in self.data}:
                raise ValueError(f"--held-out {path} is trained on; hold out other demonstrations")
        if self.tell_answer and training.mirror:
            raise ValueError(
                "--tell-answer: the answer would not be mirrored with the episode; with "
                "--tell-answer, give --no-mirror"
            )
