"""Metrics of a run: JSON lines, TensorBoard, Weights & Biases, and the display on the terminal."""

from __future__ import annotations

import json
import math
import secrets
import time
from pathlib import Path
from typing import Any, Literal, Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn
from rich.progress import Progress as Bar

from chameleon_policy.json_files import parse_json
from chameleon_policy.train.checkpoint import Progress
from chameleon_policy.writing import named, whole_file

METRICS = "metrics.jsonl"
Logger = Literal["tensorboard", "wandb"]

SHOWN = {"loss": "loss", "action": "action", "control_jepa": "jepa", "decision_loss": "decision"}
"""Metrics on the terminal, with their labels."""
SECONDS_BETWEEN_LINES = 10.0
"""Time between two lines where standard error is no terminal."""


class Sink(Protocol):
    """A destination of metrics."""

    def write(self, step: int, metrics: dict[str, float]) -> None:
        """Write the metrics of a step."""

    def close(self) -> None:
        """Close files and connections."""


class JsonLines:
    """The sink metrics.jsonl.

    When a run is resumed, lines that will be written again are dropped: those of later steps, and
    those of evaluations that will be repeated.
    """

    def __init__(self, path: Path, progress: Progress) -> None:
        kept, evaluations = [], 0
        for line in read_metrics(path):
            is_evaluation = "loss" not in line
            evaluations += is_evaluation
            if line["step"] <= progress.step and (
                not is_evaluation or evaluations <= progress.watched
            ):
                kept.append(line)
        with whole_file(path) as unfinished:
            unfinished.write_text("".join(json.dumps(line) + "\n" for line in kept))
        self._path, self._file = path, path.open("a", buffering=1)

    def write(self, step: int, metrics: dict[str, float]) -> None:
        """Write one line, without NaN (no deciding step was drawn)."""
        known = {name: value for name, value in metrics.items() if not math.isnan(value)}
        with named(self._path):
            self._file.write(json.dumps({"step": step, **known}) + "\n")

    def close(self) -> None:
        """Close the file."""
        with named(self._path):
            self._file.close()


class TensorBoard:
    """The sink of event files in run/tensorboard."""

    def __init__(self, run: Path, resume_at: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ImportError(
                "logging to TensorBoard needs: pip install 'chameleon-policy[tensorboard]'"
            ) from error
        self._writer: Any = SummaryWriter(str(run / "tensorboard"), purge_step=resume_at or None)

    def write(self, step: int, metrics: dict[str, float]) -> None:
        """Write one scalar per metric."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Flush and close the event file."""
        self._writer.close()


class WeightsAndBiases:
    """A run on wandb, offline with WANDB_MODE=offline; it is resumed under the same id."""

    def __init__(self, run: Path, settings: dict[str, Any]) -> None:
        try:
            import wandb
        except ImportError as error:
            raise ImportError(
                "logging to wandb needs: pip install 'chameleon-policy[wandb]'"
            ) from error
        identity = run / "wandb-id"
        if not identity.exists():
            identity.write_text(secrets.token_hex(8))
        try:
            self._run: Any = wandb.init(
                project="chameleon",
                name=run.resolve().name,
                id=identity.read_text(),
                resume="allow",
                dir=str(run),
                config=settings,
            )
        except wandb.errors.UsageError as error:
            raise ValueError(
                f"wandb: {error}. Log in with `wandb login`, or set WANDB_MODE=offline"
            ) from error

    def write(self, step: int, metrics: dict[str, float]) -> None:
        """Write one row."""
        self._run.log(metrics, step=step)

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()


def open_sinks(
    run: Path, loggers: tuple[Logger, ...], settings: dict[str, Any], progress: Progress
) -> list[Sink]:
    """Open the sinks of a run."""
    sinks: list[Sink] = [JsonLines(run / METRICS, progress)]
    if "tensorboard" in loggers:
        sinks.append(TensorBoard(run, progress.step))
    if "wandb" in loggers:
        sinks.append(WeightsAndBiases(run, settings))
    return sinks


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a metrics.jsonl, without a last line that a kill cut short."""
    lines: list[dict[str, Any]] = []
    for text in path.read_bytes().splitlines() if path.exists() else []:
        try:
            line = parse_json(text, path)
        except ValueError:
            break
        if not isinstance(line, dict) or not isinstance(line.get("step"), int):
            raise ValueError(
                f"{path}: line {len(lines) + 1} is no step of a training; copy it again"
            )
        lines.append(line)
    return lines


class Display:
    """The progress of a run: a bar on a terminal, a line now and then in a log file.

    Only the first process shows it.
    """

    def __init__(self, console: Console, active: bool) -> None:
        self._console, self._active = console, active
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[metrics]}"),
            console=console,
            disable=not (active and console.is_terminal),
        )
        self._task = self._bar.add_task("training", total=1.0, metrics="")
        self._printed_at = -SECONDS_BETWEEN_LINES
        self._unprinted: str | None = None
        """The newest line, until it is printed."""

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()
        if self._unprinted is not None:
            self.print(self._unprinted)  # the last step

    def show(self, progress: Progress, share: float, metrics: dict[str, float]) -> None:
        """Show the newest metrics when `share` of the budget is spent."""
        parts = [f"{label} {metrics[name]:.4f}" for name, label in SHOWN.items() if name in metrics]
        left = progress.seconds * (1 - share) / max(share, 1e-6)
        speed = f"{metrics['frames_per_second']:,.0f} frames/s, {_clock(left)} left"
        text = f"step {progress.step}: {', '.join(parts)}; {speed}"
        self._bar.update(self._task, completed=share, metrics=text)
        self._unprinted = text
        if (
            not self._console.is_terminal
            and time.monotonic() - self._printed_at > SECONDS_BETWEEN_LINES
        ):
            self.print(text)
            self._printed_at, self._unprinted = time.monotonic(), None

    def print(self, text: str) -> None:
        """Print a line that stays."""
        if self._active:
            self._console.print(text, soft_wrap=True, highlight=False)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"
