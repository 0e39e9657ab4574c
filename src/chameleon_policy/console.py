"""Text and progress bars in the terminal, and checks of options."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
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
SECONDS_BETWEEN_LINES = 30.0
"""Time between two lines where standard error is no terminal."""


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
        told = partial(_told, bar, line, description)

        def advance(done: int) -> None:
            bar.update(line, completed=done)
            speed = bar.tasks[0].speed
            bar.update(line, rate=f"{60 * speed:.0f}/min" if speed else "")

        with nullcontext() if bar.console.is_terminal else _now_and_then(bar.console, told):
            yield advance


def _told(bar: Progress, line: TaskID, description: str) -> str:
    """Return the progress of a bar as plain text."""
    task = bar.tasks[bar.task_ids.index(line)]
    minutes, seconds = divmod(round(task.elapsed or 0), 60)
    return f"{description}: {task.completed:.0f} of {task.total:.0f}, {minutes}:{seconds:02d}"


@contextmanager
def _now_and_then(console: Console, text: Callable[[], str]) -> Iterator[None]:
    """Print a line now and then, also while nothing is finished, where bars are not seen."""
    over = threading.Event()

    def tell() -> None:
        while not over.wait(SECONDS_BETWEEN_LINES):
            console.print(text(), markup=False, highlight=False, soft_wrap=True)

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        over.set()
        teller.join()


def counted(count: int, word: str) -> str:
    """Return a number of things: 1 episode, 2 episodes."""
    return f"{count} {word}{'' if count == 1 else 's'}"


def check_writable(option: str, path: Path) -> None:
    """Raise a ValueError that names the option if a file cannot be written; make its folder.

    To be called before work whose result would be lost.
    """
    if path.is_dir():
        raise ValueError(f"--{option} must name a file, and {path} is a folder")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise ValueError(
            f"--{option}: {path} cannot be written ({error.strerror or error}); choose another file"
        ) from error


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
