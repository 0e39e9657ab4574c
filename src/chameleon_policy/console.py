"""Progress bar in the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

Bar = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]
"""Type of `progress_bar`, for functions that take one."""


@contextmanager
def progress_bar(description: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a bar with a rate; yield the function that sets the number of steps done."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
    )
    with Progress(
        *columns, TimeElapsedColumn(), TimeRemainingColumn(), console=Console(stderr=True)
    ) as bar:
        line = bar.add_task(description, total=total, rate="")

        def advance(done: int) -> None:
            bar.update(line, completed=done)
            speed = bar.tasks[0].speed
            bar.update(line, rate=f"{60 * speed:.0f}/min" if speed else "")

        yield advance
