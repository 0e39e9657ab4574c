"""Progress of a bench on the terminal."""

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

from chameleon_policy.experiments.bench.jobs import BenchJob
from chameleon_policy.train.metrics import METRICS, read_metrics


class Board:
    """Progress bars on a terminal; in a log file, a line at the beginning of each process."""

    def __init__(self, console: Console, out: Path) -> None:
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        self._console, self._out = console, out
        self._bars = Progress(
            *columns, console=console, transient=True, disable=not console.is_terminal
        )
        self._training: dict[TaskID, BenchJob] = {}

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    @contextmanager
    def bar(self, title: str, training: BenchJob | None = None) -> Iterator[None]:
        """Show a bar while a process runs; it counts the steps of a training run."""
        if not self._console.is_terminal:
            self.say(f"{title} begins")
        bar = self._bars.add_task(title, total=training.bench.steps if training else None)
        if training:
            self._training[bar] = training
        try:
            yield
        finally:
            self._training.pop(bar, None)
            self._bars.update(bar, visible=False)

    def refresh(self) -> None:
        """Read the steps of each training run from its metrics."""
        if self._console.is_terminal:
            for bar, job in list(self._training.items()):
                lines = read_metrics(job.run(self._out) / METRICS)
                self._bars.update(bar, completed=lines[-1]["step"] if lines else 0)

    def say(self, text: str, style: str = "") -> None:
        """Print a line above the bars."""
        self._console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)
