"""The one training loop. A method has a loss and can be saved; everything else is here and the same
for all of them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import torch
from accelerate import Accelerator
from rich.console import Console
from torch import Tensor, nn

from chameleon_policy.kernels import fuse
from chameleon_policy.policy import EpisodeBatch
from chameleon_policy.train.checkpoint import POLICY, Checkpoints, Progress
from chameleon_policy.train.config import TrainingConfig
from chameleon_policy.train.display import Display
from chameleon_policy.train.ema import WeightAverage
from chameleon_policy.train.feeder import Feeder, Part, chosen_episodes
from chameleon_policy.train.graphs import GraphedLoss, loss_options
from chameleon_policy.train.metrics import Sink
from chameleon_policy.train.muon import Muon, matrices_of
from chameleon_policy.train.order import seed_noise
from chameleon_policy.train.stopping import StopRequest
from chameleon_policy.train.store import EpisodeStore

Watch = Callable[[nn.Module], Mapping[str, float]]
"""Scores the policy while it is being trained: in closed loop, or on demonstrations that are held
out.
"""


class StepLoss(Protocol):
    """What `loss` returns: a number to minimise and what it is made of, detached."""

    @property
    def total(self) -> Tensor:
        """The number to minimise."""

    @property
    def parts(self) -> dict[str, Tensor]:
        """What to log beside it."""


class Method(Protocol):
    """Anything that can be trained: an nn.Module with a loss.

    One whose loss takes `state` and `augmentation` and returns them can be trained on windows of
    long episodes, unless its `carries_memory` is False. One that has an `update_target` is told
    after every optimizer step.
    """

    def loss(self, batch: EpisodeBatch, **options: Any) -> StepLoss:
        """The loss of one batch of episodes.

        One that takes `check_values` promises that without it nothing waits for the device: only
        then are steps recorded. One that takes `keep_state` may leave out the memory afterwards
        where no window follows.
        """

    def save_pretrained(self, directory: Path) -> None:
        """Write what evaluation needs; called with the averaged weights in place."""


class DivergedError(ValueError):
    """The loss is not a number any more."""


def make_optimizers(method: nn.Module, config: TrainingConfig) -> list[torch.optim.Optimizer]:
    """AdamW for everything that is trained; or Muon for the matrices and AdamW for the rest."""
    trained = [parameter for parameter in method.parameters() if parameter.requires_grad]
    chosen = {id(matrix) for matrix in matrices_of(method)} if config.optimizer == "muon" else set()
    matrices = [parameter for parameter in trained if id(parameter) in chosen]
    rest = [parameter for parameter in trained if id(parameter) not in chosen]
    optimizers: list[torch.optim.Optimizer] = []
    if rest:
        betas = (0.9, config.beta2)
        optimizers.append(
            torch.optim.AdamW(
                rest,
                lr=config.learning_rate,
                betas=betas,
                weight_decay=config.weight_decay,
                fused=True,
            )
        )
    if matrices:
        optimizers.append(Muon(matrices, lr=config.learning_rate, weight_decay=config.weight_decay))
    return optimizers


class Trainer:
    """Trains one method on one dataset in one run folder."""

    def __init__(
        self,
        method: Any,
        store: EpisodeStore,
        config: TrainingConfig,
        run: Path,
        accelerator: Accelerator,
        *,
        watches: Sequence[Watch] = (),
    ) -> None:
        parts = accelerator.num_processes * config.accumulate
        if config.batch % parts:
            raise ValueError(
                f"--batch {config.batch} cannot be divided into {parts} equal parts "
                f"({accelerator.num_processes} processes x --accumulate {config.accumulate}); choose a multiple of {parts}"
            )
        windowed = config.window is not None and config.window < max(store.lengths)
        if windowed and not getattr(method, "carries_memory", hasattr(method, "initial_state")):
            raise ValueError(
                f"{type(method).__name__} carries no memory from window to window; leave out --window"
            )
        self.method, self.store, self.config, self.accelerator = method, store, config, accelerator
        self.run, self.watches = run, watches
        if config.forget_activations:
            if not hasattr(method, "forget_activations"):
                raise ValueError(
                    f"{type(method).__name__} always keeps its activations; leave out --forget-activations"
                )
            method.forget_activations = True
        on_gpu = accelerator.device.type == "cuda"
        if config.fused and on_gpu:
            fuse(method)
        self.optimizers = make_optimizers(method, config)
        self.average = WeightAverage(method, config.ema_decay)
        self.checkpoints = Checkpoints(run, config.keep_checkpoints)
        self.progress = Progress(0, 0.0)
        self._unread: list[tuple[int, dict[str, Tensor]]] = []
        self._options = loss_options(method)
        never_waits = "check_values" in self._options
        graphs = config.graphs and never_waits and config.window is None and config.accumulate == 1
        self._graphed = GraphedLoss(method, accelerator.autocast) if graphs and on_gpu else None

    def restore(self) -> Progress:
        """Go back to the newest checkpoint; a new run stays at step 0."""
        self.progress = (
            self.checkpoints.restore(self.method, self.average.weights, self.optimizers)
            or self.progress
        )
        return self.progress

    def train(self, sinks: Sequence[Sink], console: Console) -> int | None:
        """Train until the budget is spent (returns None) or a signal asks to stop (its number);
        saves in both cases.
        """
        config, started = self.config, time.perf_counter() - self.progress.seconds
        saved_at = self.progress.seconds
        self.method.train()
        with (
            StopRequest() as stop,
            Display(console, self.accelerator.is_main_process) as display,
            Feeder(self.store, config, self.accelerator, self.progress.step) as feeder,
        ):
            while True:
                share, signal = self._agree(self.share_of_budget, stop.signal)
                looks = int(share * config.watch_times)
                if self.watches and self.progress.watched < looks:
                    started += self._look(sinks, display)  # time that does not count
                    self.progress = replace(self.progress, watched=looks)
                    feeder.restart_clock()
                if share >= 1 or signal is not None:
                    break
                self._step(feeder.next_step(), share)
                self.progress = replace(
                    self.progress,
                    step=self.progress.step + 1,
                    seconds=time.perf_counter() - started,
                )
                if self.progress.step % config.log_steps == 0:
                    figures = self._write_figures(sinks, feeder)
                    display.show(self.progress, self.share_of_budget, figures)
                    if self._checkpoint_is_due(saved_at):
                        self.save()
                        saved_at = self.progress.seconds
                        feeder.restart_clock()
            if self._unread:
                self._write_figures(sinks, feeder)
        self.save()
        return signal

    @property
    def share_of_budget(self) -> float:
        """How much of the budget is spent, from 0 to 1."""
        config, progress = self.config, self.progress
        if config.steps is not None:
            return min(1.0, progress.step / config.steps)
        assert config.minutes is not None
        return min(1.0, progress.seconds / (60 * config.minutes))

    def save(self) -> None:
        """A checkpoint to go on from, and the averaged weights as a policy."""
        if self.accelerator.is_main_process:
            self.checkpoints.save(self.progress, self.method, self.average.weights, self.optimizers)
            self.export()
        self.accelerator.wait_for_everyone()

    def export(self) -> None:
        """The averaged weights as a policy."""
        with self.average.applied(self.method):
            self.method.save_pretrained(self.run / POLICY)

    def _step(self, parts: Sequence[Part], share: float) -> None:
        """One optimizer step over this process's parts of the batch."""
        config = self.config
        rate = config.rate(self.progress.step, share)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.zero_grad(set_to_none=True)
        figures: dict[str, list[Tensor]] = {}
        for part in parts:
            seed_noise(config.seed, self.progress.step, part.number)
            for name, value in self._accumulate(part).items():
                figures.setdefault(name, []).append(value)
        self._average_gradients()
        norm = nn.utils.clip_grad_norm_(self.method.parameters(), config.gradient_clip)
        for optimizer in self.optimizers:
            optimizer.step()
        if hasattr(self.method, "update_target"):
            self.method.update_target()
        self.average.update(self.method, self.progress.step)
        means = {name: _mean(name, torch.stack(values)) for name, values in figures.items()}
        self._unread.append((self.progress.step, {**means, "gradient_norm": norm}))

    def _accumulate(self, part: Part) -> dict[str, Tensor]:
        """Gradients of one part, window by window; the windows count by their valid time steps."""
        if self._graphed is not None:
            return self._graphed(part.windows[0].batch)
        sums: dict[str, Tensor] = {}
        weights: dict[str, Tensor] = {}
        carried: dict[str, Any] = {}
        for window in part.windows:
            if carried:
                carried = {name: value[window.survivors] for name, value in carried.items()}
            options = {name: name == "keep_state" and not window.last for name in self._options}
            with self.accelerator.autocast():
                loss = self.method.loss(window.batch, **options, **carried)
            (loss.total * window.weight / self.config.accumulate).backward()
            for name, value in {"loss": loss.total.detach(), **loss.parts}.items():
                # A window may have nothing of a part; but a loss that is no number stays so.
                counted = torch.isfinite(value) | (name == "loss")
                sums[name] = (
                    sums.get(name, 0) + torch.where(counted, value.float(), 0.0) * window.weight
                )
                weights[name] = weights.get(name, 0) + counted * window.weight
            if not window.last:
                carried = {"state": loss.state, "augmentation": loss.augmentation}
        return {name: sums[name] / weights[name] for name in sums}

    def _average_gradients(self) -> None:
        if self.accelerator.num_processes == 1:
            return
        gradients = [
            parameter.grad for parameter in self.method.parameters() if parameter.grad is not None
        ]
        flat = self.accelerator.reduce(
            torch.cat([gradient.flatten() for gradient in gradients]), reduction="mean"
        )
        for gradient, mean in zip(
            gradients, flat.split([gradient.numel() for gradient in gradients]), strict=True
        ):
            gradient.copy_(mean.view_as(gradient))

    def _agree(self, share: float, signal: int | None) -> tuple[float, int | None]:
        """Every process follows the first one's clock, and a signal to any of them stops all."""
        if self.accelerator.num_processes == 1:
            return share, signal
        mine = torch.tensor(
            [share if self.accelerator.is_main_process else 0.0, float(signal or 0)],
            dtype=torch.float64,
        )
        everyone = self.accelerator.gather(mine.to(self.accelerator.device).unsqueeze(0))
        return float(everyone[0, 0]), int(everyone[:, 1].max()) or None

    def _write_figures(self, sinks: Sequence[Sink], feeder: Feeder) -> dict[str, float]:
        """Means since the last line; the first look at the numbers, so that steps never wait for
        the device.
        """
        steps, rows = [step for step, _ in self._unread], [row for _, row in self._unread]
        self._unread = []
        names = list(dict.fromkeys(name for row in rows for name in row))
        nothing = torch.full((), math.nan, device=self.accelerator.device)
        values = torch.stack(
            [torch.stack([row.get(name, nothing).float() for row in rows]) for name in names]
        )
        counted = torch.isfinite(values)
        sums = self.accelerator.reduce(torch.where(counted, values, 0.0), reduction="sum").cpu()
        counts = self.accelerator.reduce(counted.float(), reduction="sum").cpu()
        for place, step in enumerate(steps):
            for row, name in enumerate(names):
                if (
                    name in ("loss", "gradient_norm")
                    and counts[row, place] < self.accelerator.num_processes
                ):
                    self._refuse_to_go_on(name, float(values[row, place]), step)
        figures = dict(zip(names, (sums.sum(1) / counts.sum(1)).tolist(), strict=True))
        figures["learning_rate"] = self.optimizers[0].param_groups[0]["lr"]
        figures |= feeder.figures(len(steps)) | {"seconds": self.progress.seconds}
        for sink in sinks:
            sink.write(self.progress.step, figures)
        return figures

    def _refuse_to_go_on(self, name: str, value: float, step: int) -> None:
        episodes = chosen_episodes(self.store, self.config, step)
        raise DivergedError(
            f"the {name.replace('_', ' ')} is {value} at step {step}; the batch was made of the episodes {episodes}. "
            f"Look at them, or lower --learning-rate; checkpoints from before are in {self.checkpoints.folder}"
        )

    def _checkpoint_is_due(self, saved_at: float) -> bool:
        config = self.config
        if config.checkpoint_steps is not None:
            interval = math.ceil(config.checkpoint_steps / config.log_steps) * config.log_steps
            return self.progress.step % interval == 0
        due = self.progress.seconds - saved_at >= 60 * config.checkpoint_minutes
        return self._agree(float(due), None)[0] > 0

    def _look(self, sinks: Sequence[Sink], display: Display) -> float:
        """Let the watches score the averaged weights; returns the seconds it took."""
        started = time.perf_counter()
        if self.accelerator.is_main_process:
            with self.average.applied(self.method):
                figures = {
                    name: value
                    for watch in self.watches
                    for name, value in watch(self.method).items()
                }
                figures["seconds"] = self.progress.seconds
            for sink in sinks:
                sink.write(self.progress.step, figures)
            display.say(
                f"step {self.progress.step}: "
                + ", ".join(
                    f"{name} {value:.3g}" for name, value in figures.items() if name != "seconds"
                )
            )
        return time.perf_counter() - started


def _mean(name: str, values: Tensor) -> Tensor:
    """Over the parts of a batch; some may have nothing of a figure, but every part has a loss."""
    return values.mean() if name == "loss" else values.nanmean()
