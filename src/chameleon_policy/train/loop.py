"""The training loop, the same for every method."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from rich.console import Console
from torch import Tensor, nn

from chameleon_policy.kernels import fuse
from chameleon_policy.policy import VisuomotorPolicy
from chameleon_policy.train.augmentation import Mirror
from chameleon_policy.train.checkpoint import POLICY, Checkpoints, Progress
from chameleon_policy.train.config import TrainingConfig
from chameleon_policy.train.feeder import EpisodeWindow, Feeder, SubBatches, sampled_episodes
from chameleon_policy.train.graphs import GraphedLoss
from chameleon_policy.train.metrics import Display, Sink
from chameleon_policy.train.optimizers import WeightAverage, make_optimizers
from chameleon_policy.train.sampling import seed_noise
from chameleon_policy.train.stopping import StopRequest
from chameleon_policy.train.store import EpisodeStore

Watch = Callable[[VisuomotorPolicy], Mapping[str, float]]
"""Evaluates the policy during training, in closed loop or on held-out demonstrations; returns
metrics."""


class DivergedError(ValueError):
    """The loss or its gradient is no longer finite."""


class Trainer:
    """The training of one policy on one dataset in one run folder."""

    def __init__(
        self,
        policy: VisuomotorPolicy,
        store: EpisodeStore,
        config: TrainingConfig,
        run: Path,
        accelerator: Accelerator,
        *,
        mirror: Mirror | None = None,
        watches: Sequence[Watch] = (),
    ) -> None:
        """Prepare a training from the beginning.

        Args:
            policy: The policy, on the accelerator's device.
            store: The episodes to train on.
            config: How to train.
            run: Folder of the run.
            accelerator: Device, precision and processes.
            mirror: How to mirror the robot's state and actions; needed for `config.mirror`.
            watches: Evaluations during training, `config.watch_times` times.
        """
        _check_sub_batches(config, accelerator.num_processes)
        windowed = config.window is not None and config.window < max(store.lengths)
        if windowed and not policy.carries_memory:
            raise ValueError(
                f"{type(policy).__name__} carries no memory from window to window; leave out "
                "--window"
            )
        self.policy, self.store, self.config, self.accelerator = policy, store, config, accelerator
        self.run, self.mirror, self.watches = run, mirror, watches
        policy.forget_activations = config.forget_activations
        on_gpu = accelerator.device.type == "cuda"
        if config.fused and on_gpu:
            fuse(policy)
        self.optimizers = make_optimizers(policy, config)
        self.average = WeightAverage(policy, config.ema_decay)
        self.checkpoints = Checkpoints(run, config.keep_checkpoints)
        self.progress = Progress(0, 0.0)
        self._unwritten: list[tuple[int, dict[str, Tensor]]] = []
        """Metrics of the steps since the last line, still on the device."""
        self._graphed = (
            GraphedLoss(policy, accelerator.autocast) if on_gpu and config.uses_graphs else None
        )

    def restore(self) -> Progress:
        """Restore the newest checkpoint, if there is one, and return the progress."""
        self.progress = (
            self.checkpoints.restore(self.policy, self.average.weights, self.optimizers)
            or self.progress
        )
        return self.progress

    def train(self, sinks: Sequence[Sink], console: Console) -> int | None:
        """Train until the budget is spent or a signal asks to stop, and save in both cases.

        Returns the number of the signal, or None when the budget is spent.
        """
        config, started = self.config, time.perf_counter() - self.progress.seconds
        saved_at = self.progress.seconds
        self.policy.train()
        with (
            StopRequest() as stop,
            Display(console, self.accelerator.is_main_process) as display,
            Feeder(self.store, config, self.accelerator, self.progress.step, self.mirror) as feeder,
        ):
            while True:
                share, signal = self._agree(self.share_of_budget, stop.signal)
                due = int(share * config.watch_times)
                if self.watches and self.progress.watched < due:
                    # evaluations do not count as training time
                    started += self._evaluate(sinks, display)
                    self.progress = replace(self.progress, watched=due)
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
                    metrics = self._write_metrics(sinks, feeder)
                    display.show(self.progress, self.share_of_budget, metrics)
                    if self._checkpoint_is_due(saved_at):
                        self.save()
                        saved_at = self.progress.seconds
                        feeder.restart_clock()
            if self._unwritten:
                metrics = self._write_metrics(sinks, feeder)
                display.show(self.progress, self.share_of_budget, metrics)
        self.save()
        return signal

    @property
    def share_of_budget(self) -> float:
        """Share of the budget that is spent, from 0 to 1."""
        config, progress = self.config, self.progress
        if config.steps is not None:
            return min(1.0, progress.step / config.steps)
        assert config.minutes is not None
        return min(1.0, progress.seconds / (60 * config.minutes))

    def save(self) -> None:
        """Save a checkpoint, and the averaged weights as a policy."""
        if self.accelerator.is_main_process:
            self.checkpoints.save(self.progress, self.policy, self.average.weights, self.optimizers)
            self.export()
        self.accelerator.wait_for_everyone()

    def export(self) -> None:
        """Save the averaged weights as a policy."""
        with self.average.applied(self.policy):
            self.policy.save_pretrained(self.run / POLICY)

    def _step(self, sub_batches: SubBatches, share: float) -> None:
        """Take one optimizer step when `share` of the budget is spent."""
        config = self.config
        rate = config.rate(self.progress.step, share)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.zero_grad(set_to_none=True)
        metrics: dict[str, list[Tensor]] = {}
        for index, windows in sub_batches.items():
            seed_noise(config.seed, self.progress.step, index)
            for name, value in self._accumulate(windows).items():
                metrics.setdefault(name, []).append(value)
        self._average_gradients()
        norm = nn.utils.clip_grad_norm_(self.policy.parameters(), config.gradient_clip)
        for optimizer in self.optimizers:
            optimizer.step()
        self.policy.update_target()
        self.average.update(self.policy, self.progress.step)
        means = {name: _mean(name, torch.stack(values)) for name, values in metrics.items()}
        self._unwritten.append((self.progress.step, {**means, "gradient_norm": norm}))

    def _accumulate(self, windows: Sequence[EpisodeWindow]) -> dict[str, Tensor]:
        """Add the gradients of a sub-batch, and return its metrics.

        Windows are weighted by their valid time steps.
        """
        if self._graphed is not None:
            return self._graphed(windows[0].batch)
        sums: dict[str, Tensor] = {}
        weights: dict[str, Tensor] = {}
        carried: dict[str, Any] = {}
        for window in windows:
            carried = {name: value[window.survivors] for name, value in carried.items()}
            with self.accelerator.autocast():
                loss = self.policy.loss(
                    window.batch, check_values=False, keep_state=not window.last, **carried
                )
            (loss.total * window.weight / self.config.accumulate).backward()
            for name, value in {"loss": loss.total.detach(), **loss.parts}.items():
                # A window may lack a part of the loss (NaN), but the loss itself must be finite.
                counted = torch.isfinite(value) | (name == "loss")
                sums[name] = (
                    sums.get(name, 0) + torch.where(counted, value.float(), 0.0) * window.weight
                )
                weights[name] = weights.get(name, 0) + counted * window.weight
            carried = {"state": loss.state, "augmentation": loss.augmentation}
        return {name: sums[name] / weights[name] for name in sums}

    def _average_gradients(self) -> None:
        if self.accelerator.num_processes == 1:
            return
        gradients = [
            parameter.grad for parameter in self.policy.parameters() if parameter.grad is not None
        ]
        flat = self.accelerator.reduce(
            torch.cat([gradient.flatten() for gradient in gradients]), reduction="mean"
        )
        for gradient, mean in zip(
            gradients, flat.split([gradient.numel() for gradient in gradients]), strict=True
        ):
            gradient.copy_(mean.view_as(gradient))

    def _agree(self, share: float, signal: int | None) -> tuple[float, int | None]:
        """Return the first process's share of the budget, and a signal that any process got."""
        if self.accelerator.num_processes == 1:
            return share, signal
        own = torch.tensor(
            [share if self.accelerator.is_main_process else 0.0, float(signal or 0)],
            dtype=torch.float64,
        )
        everyone = self.accelerator.gather(own.to(self.accelerator.device).unsqueeze(0))
        return float(everyone[0, 0]), int(everyone[:, 1].max()) or None

    def _write_metrics(self, sinks: Sequence[Sink], feeder: Feeder) -> dict[str, float]:
        """Write the means over the steps since the last line.

        Only here are metrics read from the device, so that steps never wait for it.
        """
        steps = [step for step, _ in self._unwritten]
        rows = [row for _, row in self._unwritten]
        self._unwritten = []
        names = list(dict.fromkeys(name for row in rows for name in row))
        missing = torch.full((), math.nan, device=self.accelerator.device)
        values = torch.stack(
            [torch.stack([row.get(name, missing).float() for row in rows]) for name in names]
        )
        counted = torch.isfinite(values)
        sums = self.accelerator.reduce(torch.where(counted, values, 0.0), reduction="sum").cpu()
        counts = self.accelerator.reduce(counted.float(), reduction="sum").cpu()
        for column, step in enumerate(steps):
            for row, name in enumerate(names):
                finite = counts[row, column] == self.accelerator.num_processes
                if name in ("loss", "gradient_norm") and not finite:
                    self._raise_diverged(name, float(values[row, column]), step)
        metrics = dict(zip(names, (sums.sum(1) / counts.sum(1)).tolist(), strict=True))
        metrics["learning_rate"] = self.optimizers[0].param_groups[0]["lr"]
        metrics |= feeder.throughput(len(steps)) | {"seconds": self.progress.seconds}
        for sink in sinks:
            sink.write(self.progress.step, metrics)
        return metrics

    def _raise_diverged(self, name: str, value: float, step: int) -> None:
        episodes = sampled_episodes(self.store, self.config, step)
        raise DivergedError(
            f"the {name.replace('_', ' ')} is {value} at step {step}; the batch was made of the "
            f"episodes {episodes}. Look at them, or lower --learning-rate; checkpoints from before "
            f"are in {self.checkpoints.folder}"
        )

    def _checkpoint_is_due(self, saved_at: float) -> bool:
        config = self.config
        if config.checkpoint_steps is not None:
            interval = math.ceil(config.checkpoint_steps / config.log_steps) * config.log_steps
            return self.progress.step % interval == 0
        due = self.progress.seconds - saved_at >= 60 * config.checkpoint_minutes
        return self._agree(float(due), None)[0] > 0

    def _evaluate(self, sinks: Sequence[Sink], display: Display) -> float:
        """Evaluate the averaged weights with every watch; return the seconds it took."""
        started = time.perf_counter()
        if self.accelerator.is_main_process:
            metrics: dict[str, float] = {}
            with self.average.applied(self.policy):
                for watch in self.watches:
                    metrics |= watch(self.policy)
            shown = ", ".join(f"{name} {value:.3g}" for name, value in metrics.items())
            metrics["seconds"] = self.progress.seconds
            for sink in sinks:
                sink.write(self.progress.step, metrics)
            display.print(f"step {self.progress.step}: {shown}")
        return time.perf_counter() - started


def _check_sub_batches(config: TrainingConfig, processes: int) -> None:
    """Raise a ValueError unless the batch can be divided into equal sub-batches."""
    count = processes * config.accumulate
    if config.batch % count:
        raise ValueError(
            f"--batch {config.batch} cannot be divided into {count} equal parts "
            f"({processes} processes x --accumulate {config.accumulate}); "
            f"choose a multiple of {count}"
        )


def _mean(name: str, values: Tensor) -> Tensor:
    """Average a metric over sub-batches, ignoring NaN; the loss itself must be finite in all."""
    return values.mean() if name == "loss" else values.nanmean()
