"""The progress bar of long work."""

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
"""What `progress_bar` is."""


@contextmanager
def progress_bar(description: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar with a rate; yields the function to call with the number of things done."""
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
