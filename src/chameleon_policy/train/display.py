"""What people see of a training: a bar with the figures on a terminal, a line now and then in a log
file.
"""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn
from rich.progress import Progress as Bar

from chameleon_policy.train.checkpoint import Progress

SHOWN = {"loss": "loss", "action": "action", "control_jepa": "jepa", "decision_loss": "decision"}
SECONDS_BETWEEN_LINES = 10.0


class Display:
    """Shows the progress of a run; silent in all processes but the first."""

    def __init__(self, console: Console, active: bool) -> None:
        self._console, self._active = console, active
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[figures]}"),
            console=console,
            disable=not (active and console.is_terminal),
        )
        self._line = self._bar.add_task("training", total=1.0, figures="")
        self._spoken = -SECONDS_BETWEEN_LINES

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def show(self, progress: Progress, share: float, figures: dict[str, float]) -> None:
        """The newest figures."""
        parts = [f"{label} {figures[name]:.4f}" for name, label in SHOWN.items() if name in figures]
        left = progress.seconds * (1 - share) / max(share, 1e-6)
        text = f"step {progress.step}: {', '.join(parts)}; {figures['frames_per_second']:,.0f} frames/s, {_clock(left)} left"
        self._bar.update(self._line, completed=share, figures=text)
        if (
            self._active
            and not self._console.is_terminal
            and time.monotonic() - self._spoken > SECONDS_BETWEEN_LINES
        ):
            self._console.print(text, soft_wrap=True, highlight=False)
            self._spoken = time.monotonic()

    def say(self, text: str) -> None:
        """A line that stays."""
        if self._active:
            self._console.print(text, soft_wrap=True, highlight=False)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"
