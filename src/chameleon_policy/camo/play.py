"""Videos and contact sheets of episodes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from chameleon_policy.camo.cameras import VIEWS, Frame
from chameleon_policy.camo.contact_sheet import (
    PHASE_COLOURS,
    SheetColumn,
    captioned,
    contact_sheet,
    shrink,
)
from chameleon_policy.camo.env import CamoEnv, describe_answers
from chameleon_policy.camo.experts import make_expert
from chameleon_policy.camo.scene import LARGEST_IMAGE
from chameleon_policy.camo.scoring import Score
from chameleon_policy.camo.tasks import Answer, Task
from chameleon_policy.camo.world import CONTROL_HZ
from chameleon_policy.data.video import encode_video

SHARPNESS = 2
"""Images are drawn larger by this factor and shrunk."""


@dataclass(frozen=True)
class Moment:
    """Images of one control step."""

    step: int
    phase: str
    frames: dict[str, Frame]

    @property
    def clock(self) -> str:
        """Seconds since the beginning, in words."""
        return f"{self.step / CONTROL_HZ:.1f} s"


def parse_answer(task: Task, text: str | None) -> Answer | None:
    """Return z from the command line: a number, or numbers with commas between them."""
    if text is None:
        return None
    numbers = text.strip("()").replace(" ", "").split(",")
    if not all(number.isdecimal() for number in numbers):
        answers = describe_answers(task.answers)
        raise ValueError(
            f"--z must be a number like 1, or numbers like 0,2,2, got {text!r}; "
            f"{task.name} has {answers}"
        )
    several = isinstance(task.answers[0], tuple)
    answer = tuple(map(int, numbers)) if several or len(numbers) > 1 else int(numbers[0])
    if answer not in task.answers:
        raise ValueError(
            f"{task.name} has no answer z = {answer}; it has {describe_answers(task.answers)}"
        )
    return answer


def check_output(path: Path, size: int) -> Path:
    """Return the path of the contact sheet for a video.

    Raise a ValueError before anything is simulated if the video cannot be written.
    """
    if path.suffix != ".mp4":
        raise ValueError(f"the video must be an .mp4 file, got {path}")
    if not 32 <= size <= LARGEST_IMAGE // SHARPNESS or size % 2:
        raise ValueError(
            f"size must be even and between 32 and {LARGEST_IMAGE // SHARPNESS}, got {size}"
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    except OSError as error:
        raise ValueError(
            f"cannot write to {path}: {error.strerror or error}. Choose another --out"
        ) from error
    return path.with_suffix(".png")


def watch_episode(
    env: CamoEnv,
    seed: int,
    z: Answer | None,
    size: int,
    *,
    progress: Callable[[int], object] = lambda step: None,
) -> tuple[list[Moment], Score]:
    """Let an expert play an episode; return images of every control step, and the score."""
    env.reset(seed=seed, options={"z": z})
    expert = make_expert(env)
    actions = (expert.act().executed for _ in itertools.count())
    return watch_actions(env, actions, size, progress=progress), env.score()


def watch_actions(
    env: CamoEnv,
    actions: Iterable[npt.ArrayLike],
    size: int,
    *,
    progress: Callable[[int], object] = lambda step: None,
) -> list[Moment]:
    """Return images of every control step of an episode that has been reset.

    It ends with the episode or with the actions.
    """
    moments = [_moment(env, size)]
    for action in actions:
        _, _, terminated, truncated, _ = env.step(action)
        progress(env.step_index)
        moments.append(_moment(env, size))
        if terminated or truncated:
            break
    return moments


def _moment(env: CamoEnv, size: int) -> Moment:
    frames = {
        view: shrink(frame, SHARPNESS) for view, frame in env.frames(size * SHARPNESS).items()
    }
    return Moment(env.step_index, env.phase, frames)


def save_clip(moments: list[Moment], path: Path) -> None:
    """Save an H.264 video: both views side by side under a strip with phase and clock."""
    images = [
        captioned(
            np.concatenate([moment.frames[view] for view in VIEWS], axis=1),
            moment.phase,
            moment.clock,
            PHASE_COLOURS[moment.phase],
        )
        for moment in moments
    ]
    encode_video(path, np.stack(images), Fraction(CONTROL_HZ))


def save_sheet(moments: list[Moment], env: CamoEnv, path: Path) -> None:
    """Save a contact sheet: evidence, retention, every decision, execution."""
    answer = f"z = {env.z}" + "".join(
        f", {name.replace('_', ' ')} {number}" for name, number in env.difficulty.items()
    )
    sheet = contact_sheet(
        [
            SheetColumn([moment.frames[view] for view in VIEWS], moment.phase, moment.clock)
            for moment in _choose(moments, env.script.highlights)
        ],
        f"{env.task.name}: {env.task.instruction}",
        subtitle=f"seed {env.seed}, {answer}",
        rows=VIEWS,
    )
    Image.fromarray(sheet).save(path)


def _choose(moments: list[Moment], highlights: tuple[int, ...]) -> list[Moment]:
    """Return moments of the evidence, the retention, every decision, and the execution after it.

    Ten of them, or thirteen if more than four show the evidence.
    """
    most, columns = (4, 10) if len(highlights) <= 4 else (6, 13)
    decisions = [moment.step for moment in moments if moment.phase == "decision"]
    retention = [moment.step for moment in moments if moment.phase == "retention"][:1]
    evidence = _spread(list(highlights), min(len(highlights), most))
    ends = [*decisions[1:], moments[-1].step]
    free = columns - len(evidence) - len(retention) - len(decisions)
    shown = max(1, free // max(1, len(decisions)))  # moments after each decision
    execution: list[int] = []
    for decision, end in zip(decisions, ends, strict=True):
        last = len(execution) // shown == len(decisions) - 1 and shown > 1
        points = np.linspace(0, 1, shown + 1)[1:] if last else (np.arange(shown) + 0.5) / shown
        execution += [round(decision + share * (end - decision)) for share in points]
    return [moments[step] for step in sorted({*evidence, *retention, *decisions, *execution})]


def _spread(steps: list[int], count: int) -> list[int]:
    return [steps[round(index)] for index in np.linspace(0, len(steps) - 1, count)] if steps else []
