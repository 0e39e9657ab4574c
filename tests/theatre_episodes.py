"""Made-up episodes and runs for the memory theatre: each image shows the number of its step."""

from __future__ import annotations

import numpy as np

from chameleon_policy.camo.scoring import Summary
from chameleon_policy.probes.theatre_episode import (
    Belief,
    Counterfactual,
    TheatreEpisode,
    TokenLayout,
)
from chameleon_policy.rates import Rate
from chameleon_policy.report.theatre.page import RunReport

SPACING, LEVELS = 20, 13
"""A step is a colour: three digits of base 13, far enough apart that compression cannot confuse
them.
"""
CANDIDATES = {"left": (0.5, -0.15), "middle": (0.55, 0.0), "right": (0.5, 0.15)}
LAYOUT = TokenLayout({"third": (4, 4), "wrist": (4, 4)}, ("body", "instruction"), margin=1 / 14)


def colour_of(number: int) -> tuple[int, int, int]:
    digits = (number % LEVELS, number // LEVELS % LEVELS, number // LEVELS**2)
    return tuple(SPACING * digit for digit in digits)  # type: ignore[return-value]


def number_of(colour: list[int]) -> int:
    """Return the number of a colour after compression, scaling and drawing."""
    digits = [round(value / SPACING) for value in colour[:3]]
    return digits[0] + LEVELS * digits[1] + LEVELS**2 * digits[2]


def flat_frames(numbers: range, size: int = 32) -> np.ndarray:
    """Return (T, size, size, 3), each image in the colour of its number."""
    return np.stack([np.full((size, size, 3), colour_of(number), np.uint8) for number in numbers])


def camera_frames(steps: int, seed: int, size: int = 128) -> np.ndarray:
    """Return (T, size, size, 3) with smooth light, a few things that move, and noise."""
    generator = np.random.default_rng(seed)
    rows, columns = np.mgrid[0:size, 0:size] / size
    ground = np.stack([90 + 80 * rows, 110 + 60 * columns, 140 - 60 * rows * columns], axis=-1)
    frames = np.empty((steps, size, size, 3), np.uint8)
    for step in range(steps):
        picture = ground.copy()
        for number, colour in enumerate([(200, 60, 50), (60, 150, 80), (230, 200, 70)]):
            centre = 0.5 + 0.3 * np.sin(0.05 * step + 2 * number), 0.25 + 0.25 * number
            picture[(rows - centre[0]) ** 2 + (columns - centre[1]) ** 2 < 0.008] = colour
        frames[step] = np.clip(picture + generator.normal(0, 2, picture.shape), 0, 255)
    return frames


def shares(generator: np.random.Generator, *shape: int, sharpness: float = 2.0) -> np.ndarray:
    """Return random shares that sum to one over the last axis."""
    weights = np.exp(sharpness * generator.normal(size=shape))
    return weights / weights.sum(axis=-1, keepdims=True)


def phases_of(steps: int, decisions: tuple[int, ...]) -> tuple[str, ...]:
    """Return evidence, retention up to the first decision, then decisions and execution."""
    first = min(decisions, default=steps)
    names = [
        "evidence" if step < first // 2 else "retention" if step < first else "execution"
        for step in range(steps)
    ]
    for step in decisions:
        names[step] = "decision"
    return tuple(names)


def make_episode(
    steps: int = 60,
    *,
    seed: int = 0,
    decisions: tuple[int, ...] = (30,),
    layers: int = 2,
    heads: int = 3,
    layout: TokenLayout = LAYOUT,
    frames: dict[str, np.ndarray] | None = None,
    policy: str = "Chameleon",
    outcome: str = "success",
    edits: int = 3,
) -> TheatreEpisode:
    """Return an episode whose first camera shows the step, and the second one the step after it."""
    generator = np.random.default_rng(seed)
    if frames is None:
        frames = {"third": flat_frames(range(steps)), "wrist": flat_frames(range(1, steps + 1))}
    beliefs = tuple(
        Belief(question, ("left", "middle", "right"), truth, shares(generator, steps, 3))
        for question, truth in (("which plate", 1), ("what comes next", 2))
    )
    return TheatreEpisode(
        policy=policy,
        task="clean-plate",
        seed=seed,
        answer="middle",
        outcome=outcome,
        success=outcome == "success",
        hz=7.5,
        frames=frames,
        phases=phases_of(steps, decisions),
        layout=layout,
        attention=shares(generator, steps, layers, heads, layout.count),
        beliefs=beliefs,
        positions=np.cumsum(generator.normal(0, 0.002, (steps, 3)), axis=0) + [0.35, 0.0, 0.2],
        candidates=CANDIDATES,
        counterfactuals=tuple(
            _edit(generator, step, number, frames) for step in decisions for number in range(edits)
        ),
    )


def _edit(
    generator: np.random.Generator, step: int, number: int, frames: dict[str, np.ndarray]
) -> Counterfactual:
    """Return an edited memory: 0 is unedited, the policy follows 1, and it does not follow 2."""
    names = ("as it was", "swap the relevant traces", "erase the evidence")
    asks_for = ("middle", "left", "right")[number]
    x, y = CANDIDATES[asks_for]
    plan = np.linspace([0.36, 0.0, 0.2], [x, y, 0.05], 12)
    first = next(iter(frames.values()), np.zeros((0, 32, 32, 3), np.uint8))
    later = first[step : step + 12] if number == 0 else 255 - first[step : step + 12]
    return Counterfactual(
        name=names[number],
        explanation=f"Explanation {number} of the edit at step {step}.",
        step=step,
        asks_for=asks_for,
        chosen=("middle", "left", None)[number],
        shares=shares(generator, 3),
        plan=plan,
        frames=later,
    )


def make_run(name: str = "chameleon-small", **given: object) -> RunReport:
    """Scores of two tasks and a learning curve."""
    summary = Summary(
        Rate.of(30, 36), Rate.of(28, 30), Rate.of(28, 36), 1 / 3, {"success": 28, "wrong choice": 2}
    )
    metrics = [
        {"step": step, "action": 1 / step, "decision_loss": 0.5 / step}
        for step in range(10, 4000, 10)
    ]
    whole = {"method": "chameleon", "preset": "small", "parameters": 4_567_890, "metrics": metrics}
    whole |= {"scores": {"clean-plate": summary, "shell-game": summary}, **given}
    return RunReport(name=name, **whole)  # type: ignore[arg-type]
