"""Figures of a run: always as JSON lines, if wanted in TensorBoard and Weights & Biases too."""

from __future__ import annotations

import json
import math
import secrets
from pathlib import Path
from typing import Any, Literal, Protocol

from chameleon_policy.train.checkpoint import Progress

METRICS = "metrics.jsonl"
Logger = Literal["tensorboard", "wandb"]


class Sink(Protocol):
    """Takes the figures of a step."""

    def write(self, step: int, figures: dict[str, float]) -> None:
        """Keep them."""

    def close(self) -> None:
        """Let go of files and connections."""


class JsonLines:
    """metrics.jsonl; when a run goes on, lines that will be written again are dropped: later steps,
    repeated looks.
    """

    def __init__(self, path: Path, progress: Progress) -> None:
        kept, looks = [], 0
        for line in read_metrics(path):
            is_look = "loss" not in line
            looks += is_look
            if line["step"] <= progress.step and (not is_look or looks <= progress.watched):
                kept.append(line)
        unfinished = path.with_suffix(".unfinished")
        unfinished.write_text("".join(json.dumps(line) + "\n" for line in kept))
        unfinished.replace(path)
        self._file = path.open("a", buffering=1)

    def write(self, step: int, figures: dict[str, float]) -> None:
        """One line; what is not a number (no deciding step was drawn) is left out."""
        known = {name: value for name, value in figures.items() if not math.isnan(value)}
        self._file.write(json.dumps({"step": step, **known}) + "\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class TensorBoard:
    """Event files in run/tensorboard."""

    def __init__(self, run: Path, resume_at: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ImportError(
                "logging to TensorBoard needs: pip install 'chameleon-policy[tensorboard]'"
            ) from error
        self._writer: Any = SummaryWriter(str(run / "tensorboard"), purge_step=resume_at or None)

    def write(self, step: int, figures: dict[str, float]) -> None:
        """One scalar per figure."""
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Flush."""
        self._writer.close()


class WeightsAndBiases:
    """A run on wandb, or offline with WANDB_MODE=offline; it goes on under the same id."""

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

    def write(self, step: int, figures: dict[str, float]) -> None:
        """One row."""
        self._run.log(figures, step=step)

    def close(self) -> None:
        """End the run."""
        self._run.finish()


def open_sinks(
    run: Path, loggers: tuple[Logger, ...], settings: dict[str, Any], progress: Progress
) -> list[Sink]:
    """The sinks of a run."""
    sinks: list[Sink] = [JsonLines(run / METRICS, progress)]
    if "tensorboard" in loggers:
        sinks.append(TensorBoard(run, progress.step))
    if "wandb" in loggers:
        sinks.append(WeightsAndBiases(run, settings))
    return sinks


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics.jsonl; a last line that a kill cut short is left out."""
    lines = []
    for text in path.read_text().splitlines() if path.exists() else []:
        try:
            lines.append(json.loads(text))
        except json.JSONDecodeError:
            break
    return lines
