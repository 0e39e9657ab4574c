"""What people see of a bench: a line for everything that runs, and what stays of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from chameleon_policy.experiments.bench.plan import Job
from chameleon_policy.train.metrics import METRICS, read_metrics


def what(job: Job, task: str | None) -> str:
    """A training or an evaluation, for people."""
    return f"training {job.name}" if task is None else f"{job.name} on {task}"


class Board:
    """Bars on a terminal; in a log file, a line when something begins and when it is over."""

    def __init__(self, console: Console, out: Path) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        self._console, self._out = console, out
        self._bars = Progress(
            *columns, console=console, transient=True, disable=not console.is_terminal
        )
        self._trainings: dict[TaskID, Job] = {}

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    @contextmanager
    def line(self, job: Job, task: str | None = None) -> Iterator[None]:
        """A line that is there as long as the work is."""
        if not self._console.is_terminal:
            self.say(f"{what(job, task)} begins")
        line = self._bars.add_task(what(job, task), total=job.bench.steps if task is None else None)
        if task is None:
            self._trainings[line] = job
        try:
            yield
        finally:
            self._trainings.pop(line, None)
            self._bars.update(line, visible=False)

    def refresh(self) -> None:
        """How far the trainings are, by what they have written."""
        if self._console.is_terminal:
            for line, job in list(self._trainings.items()):
                steps = [each["step"] for each in read_metrics(job.run(self._out) / METRICS)[-1:]]
                self._bars.update(line, completed=steps[-1] if steps else 0)

    def say(self, text: str, style: str = "") -> None:
        """A line that stays."""
        self._console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)
