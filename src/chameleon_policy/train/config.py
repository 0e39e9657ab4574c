"""How a policy is trained. The defaults are the paper's; what the policy itself is stands in
`policy/config.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

Precision = Literal["auto", "bf16", "float32"]
OptimizerName = Literal["adamw", "muon"]


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """The recipe. Give the budget as `steps` or as `minutes`; the learning rate falls to zero at
    its end.
    """

    steps: int | None = None
    """Budget in optimizer steps."""
    minutes: float | None = None
    """Budget in minutes of training; rollouts that watch it do not count."""
    batch: int = 64
    """Episodes in one optimizer step, over all processes."""
    accumulate: int = 1
    """Parts in which each process handles its share of the batch: more of them need less memory."""
    optimizer: OptimizerName = "adamw"
    """The paper's AdamW; or muon: matrices take orthogonalised momentum, the rest AdamW (faster for
    nano; see LOG.md).
    """
    learning_rate: float = 1e-4
    warmup_steps: int = 100
    """Steps over which the learning rate rises; then it falls along a cosine."""
    weight_decay: float = 1e-6
    beta2: float = 0.999
    """AdamW's second momentum."""
    gradient_clip: float = 10.0
    """Largest norm of the gradient."""
    ema_decay: float = 0.995
    """How slowly the weights for evaluation follow; they follow faster at the beginning."""
    precision: Precision = "auto"
    """bf16 autocast, or float32; auto: bf16 on a GPU."""
    forget_activations: bool = False
    """Compute activations again on the way back in place of keeping them: for episodes too long for
    the memory there is.
    """
    graphs: bool = True
    """On a GPU, record the forward and backward pass of each shape of batch as a CUDA graph and
    replay it. Not for windows and accumulation, which run without.
    """
    fused: bool = True
    """On a GPU, put the fused twins of the policy's modules in place (`kernels.fuse`); they compute
    in half precision.
    """
    window: int | None = None
    """Time steps in one backward pass: longer episodes are cut, and the memory is carried from
    window to window. Control-JEPA looks ahead within a window only.
    """
    decision_emphasis: float = 1.0
    """How often a time step just before a decision carries the action loss, against one at which
    the robot moves (needs action_steps).
    """
    rest_emphasis: float = 1.0
    """The same for time steps at which it only waits."""
    equal_frames: bool = False
    """Of several tasks, told apart by their instructions, show the episodes of those with few
    frames several times in a pass, so that each task has about as many.
    """
    uneven_pace: float = 0.0
    """Probability that a time step before the first decision is left out, and that it is shown
    twice, drawn anew each time: what is seen then passes at another pace (recordings of Camo).
    """
    longer_retention: int = 0
    """The wait before the first decision becomes up to so many steps longer, drawn anew each
    time.
    """
    mirror: bool = False
    """Show every other episode in a mirror, drawn anew each time (recordings of Camo with
    pictures).
    """
    tint: float = 0.0
    """Red, green and blue of an episode's pictures are multiplied with factors that differ from 1
    by up to this much, drawn anew each time.
    """
    warp: float = 0.0
    """An episode's pictures are stretched, turned and sheared by up to this share, drawn anew each
    time.
    """
    plain_steps: int = 0
    """For so many steps at the beginning nothing of that is done: episodes keep their pace, their
    side and their looks. A training that has no more steps than that is plain throughout.
    """
    seed: int = 0
    """Weights, order of the episodes and all noise follow from it."""
    checkpoint_minutes: float = 5.0
    """Time between two checkpoints, which are written together with a line of figures; one is
    written at the end and on Ctrl-C or SIGTERM too.
    """
    checkpoint_steps: int | None = None
    """Steps between two checkpoints, in place of minutes."""
    keep_checkpoints: int = 3
    log_steps: int = 10
    """Steps between two lines of metrics.jsonl."""
    watch_times: int = 0
    """How often, spread evenly over the budget, closed-loop rollouts on training seeds and
    demonstrations that are held out are looked at.
    """
    watch_episodes: int = 24
    """Rollouts of each such look; 0: none."""

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.minutes is None):
            raise ValueError("give the budget as --steps or as --minutes, one of the two")
        for name in ("batch", "accumulate", "keep_checkpoints", "log_steps"):
            _require(name, getattr(self, name), getattr(self, name) >= 1, "at least 1")
        for name in ("steps", "window", "checkpoint_steps"):
            _require(
                name,
                getattr(self, name),
                getattr(self, name) is None or getattr(self, name) >= 1,
                "at least 1",
            )
        for name in (
            "warmup_steps",
            "watch_times",
            "watch_episodes",
            "seed",
            "weight_decay",
            "longer_retention",
            "plain_steps",
        ):
            _require(name, getattr(self, name), getattr(self, name) >= 0, "at least 0")
        for name in (
            "learning_rate",
            "gradient_clip",
            "decision_emphasis",
            "rest_emphasis",
            "checkpoint_minutes",
        ):
            _require(name, getattr(self, name), 0 < getattr(self, name) < math.inf, "positive")
        for name, choices in (
            ("optimizer", get_args(OptimizerName)),
            ("precision", get_args(Precision)),
        ):
            _require(
                name,
                getattr(self, name),
                getattr(self, name) in choices,
                f"one of {', '.join(choices)}",
            )
        _require(
            "minutes", self.minutes, self.minutes is None or 0 < self.minutes < math.inf, "positive"
        )
        _require("uneven_pace", self.uneven_pace, 0 <= self.uneven_pace <= 0.5, "between 0 and 0.5")
        # from 0.5 on, all could shrink to a line
        _require("warp", self.warp, 0 <= self.warp < 0.5, "in [0, 0.5)")
        for name in ("tint", "ema_decay", "beta2"):
            _require(name, getattr(self, name), 0 <= getattr(self, name) < 1, "in [0, 1)")

    @property
    def another_pace(self) -> bool:
        """Whether episodes are shown at another pace than they had."""
        return bool(self.uneven_pace or self.longer_retention)

    @property
    def another_look(self) -> bool:
        """Whether their pictures are shown otherwise than they were."""
        return bool(self.mirror or self.tint or self.warp)

    @property
    def emphasis(self) -> tuple[float, float, float] | None:
        """Weights of moving, resting and deciding steps; None: all alike."""
        weights = (1.0, self.rest_emphasis, self.decision_emphasis)
        return None if weights == (1.0, 1.0, 1.0) else weights

    def rate(self, step: int, share: float) -> float:
        """Learning rate of a step, when `share` of the budget is spent: linear warm-up, then a
        cosine to zero.
        """
        warmup = min(1.0, (step + 1) / max(1, self.warmup_steps))
        return self.learning_rate * warmup * 0.5 * (1 + math.cos(math.pi * min(1.0, share)))


def _require(name: str, value: object, condition: bool, expected: str) -> None:
    if not condition:
        raise ValueError(f"--{name.replace('_', '-')} must be {expected}, got {value}")
