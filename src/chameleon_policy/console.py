"""Text and progress bars in the terminal, and checks of options."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text


def printable(text: str) -> str:
    """Return a text with its control characters spelled out, as \\x1b.

    Texts from datasets and checkpoints could otherwise clear the screen or set its title.
    """
    return "".join(
        character
        if character.isprintable() or character in "\n\t"
        else character.encode("unicode_escape").decode()
        for character in text
    )


class Terminal(Console):
    """A terminal that shows all texts as they are: without rich's markup or control characters."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, markup=False)

    def render_str(self, text: str, **options: Any) -> Text:
        """Return a text without control characters."""
        return super().render_str(printable(text), **options)


Bar = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]
"""Type of `progress_bar`, for functions that take one."""


@contextmanager
def progress_bar(description: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a bar with a rate; yield the function that sets the number of steps done."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
    )
    with Progress(
        *columns, TimeElapsedColumn(), TimeRemainingColumn(), console=Terminal(stderr=True)
    ) as bar:
        line = bar.add_task(printable(description), total=total, rate="")

        def advance(done: int) -> None:
            bar.update(line, completed=done)
            speed = bar.tasks[0].speed
            bar.update(line, rate=f"{60 * speed:.0f}/min" if speed else "")

        yield advance


def check_counts(**options: int) -> None:
    """Raise a ValueError that names the option if a count is below 1."""
    for name, count in options.items():
        if count < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be at least 1, got {count}")


def check_unique(option: str, values: Sequence[object]) -> None:
    """Raise a ValueError if an option names something twice."""
    if len(set(values)) < len(values):
        raise ValueError(
            f"--{option} must name each {option} once, got {' '.join(map(str, values))}"
        )
