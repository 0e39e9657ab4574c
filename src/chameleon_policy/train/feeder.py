"""Hands the batches of every step to the training loop, and knows how long it had to wait for
them.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

import torch
from accelerate import Accelerator

from chameleon_policy.policy import EpisodeBatch
from chameleon_policy.train.appearance import Appearance, draw_appearance
from chameleon_policy.train.config import TrainingConfig
from chameleon_policy.train.order import appearance_of, episodes_of_step, pace_of
from chameleon_policy.train.store import EpisodeStore
from chameleon_policy.train.timeline import Timeline, as_it_was, at_another_pace

AHEAD = 2
"""Steps that are prepared while the GPU is busy, when the data do not fit on it; their batches,
uint8, wait there.
"""


@dataclass(frozen=True, eq=False)
class Window:
    """A stretch of the episodes of one part."""

    batch: EpisodeBatch
    looks: list[Appearance]
    """What its episodes are to look like, until the batch has arrived and does."""
    survivors: list[int]
    """Which rows of the window before are still there."""
    weight: float
    """Share of the part's valid time steps."""
    last: bool


@dataclass(frozen=True, eq=False)
class Part:
    """What one process handles at a time: some episodes of a step's batch."""

    number: int
    """Place in the whole batch, whichever process has it."""
    windows: list[Window]
    """In order; where the policy computes, once `next_step` has returned them."""


@dataclass(frozen=True, eq=False)
class _Shipment:
    """The parts of a step on their way to the GPU, beside what it computes."""

    parts: list[Part]
    arrival: torch.cuda.Event

    def receive(self) -> list[Part]:
        """The parts, for use on the current stream from now on."""
        stream = torch.cuda.current_stream()
        stream.wait_event(self.arrival)
        for part in self.parts:
            for window in part.windows:
                window.batch.record_stream(stream)
        return self.parts


def chosen_episodes(store: EpisodeStore, config: TrainingConfig, step: int) -> list[int]:
    """Numbers of the episodes of a step's batch."""
    of_a_pass = store.pass_of_equal_frames if config.equal_frames else None
    return episodes_of_step(config.seed, step, config.batch, store.lengths, of_a_pass)


class Feeder:
    """Prepares the parts of this process, step after step; ahead of time if every batch has to
    travel to the GPU.
    """

    def __init__(
        self, store: EpisodeStore, config: TrainingConfig, accelerator: Accelerator, first_step: int
    ) -> None:
        self._store, self._config = store, config
        self._parts = accelerator.num_processes * config.accumulate
        self._mine = range(
            accelerator.process_index * config.accumulate,
            (accelerator.process_index + 1) * config.accumulate,
        )
        self._step = first_step
        self._frames = 0
        self._waited, self._since = 0.0, time.perf_counter()
        self._ready: queue.Queue[_Shipment | BaseException] = queue.Queue(AHEAD)
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if not self._store.resident:
            stream = torch.cuda.Stream(self._store.device)
            self._thread = threading.Thread(
                target=self._work_ahead, args=(self._step, stream), daemon=True
            )
            self._thread.start()
        self._since = time.perf_counter()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closing.set()
        if self._thread is not None:
            self._thread.join()

    def next_step(self) -> list[Part]:
        """This process's parts of the next step."""
        started = time.perf_counter()
        if self._thread is None:
            parts = self._arrived(self._prepare(self._step))
        else:
            ready = self._ready.get()
            if isinstance(ready, BaseException):
                raise ready
            parts = ready.receive()
        chosen = chosen_episodes(self._store, self._config, self._step)
        self._frames += sum(self._store.lengths[episode] for episode in chosen)
        self._step += 1
        self._waited += time.perf_counter() - started
        return parts

    def figures(self, steps: int) -> dict[str, float]:
        """Frames a second (of the demonstrations as they were, at whatever pace they are shown) and
        the share of time spent waiting for data, since the last call, `steps` ago.
        """
        passed = max(time.perf_counter() - self._since, 1e-9)
        result = {
            "frames_per_second": self._frames / passed,
            "data_wait": self._waited / passed,
            "step_ms": 1e3 * passed / steps,
        }
        self.restart_clock()
        return result

    def restart_clock(self) -> None:
        """Leave out of the figures what was no training."""
        self._frames, self._waited, self._since = 0, 0.0, time.perf_counter()

    def _work_ahead(self, step: int, stream: torch.cuda.Stream) -> None:
        while not self._closing.is_set():
            try:
                ready: _Shipment | BaseException = self._ship(self._prepare(step), stream)
            except BaseException as error:  # it belongs to the thread that asks for the batch
                ready = error
            while not self._closing.is_set():
                try:
                    self._ready.put(ready, timeout=0.2)
                    break
                except queue.Full:
                    continue
            step += 1

    def _prepare(self, step: int) -> list[Part]:
        config = self._config
        chosen = chosen_episodes(self._store, config, step)
        size = config.batch // self._parts
        return [
            Part(
                number,
                list(
                    self._windows(
                        [self._shown(step, place, chosen[place]) for place in _share(number, size)]
                    )
                ),
            )
            for number in self._mine
        ]

    def _shown(self, step: int, place: int, episode: int) -> Timeline:
        """How the episode at this place of a step's batch is shown."""
        config, length = self._config, self._store.lengths[episode]
        timeline = as_it_was(episode, length)
        if step < config.plain_steps:
            return timeline
        if config.another_pace:
            rng, decisions = pace_of(config.seed, step, place), self._store.decisions[episode].steps
            timeline = at_another_pace(
                episode, length, decisions, rng, config.uneven_pace, config.longer_retention
            )
        if config.another_look:
            rng = appearance_of(config.seed, step, place)
            timeline = replace(
                timeline, appearance=draw_appearance(rng, config.mirror, config.tint, config.warp)
            )
        return timeline

    def _ship(self, parts: list[Part], stream: torch.cuda.Stream) -> _Shipment:
        with torch.cuda.stream(stream):
            return _Shipment(self._arrived(parts), stream.record_event())

    def _arrived(self, parts: list[Part]) -> list[Part]:
        """The parts where the policy computes, which is also where pictures are changed
        quickest.
        """
        return [
            Part(part.number, [self._arrived_window(window) for window in part.windows])
            for part in parts
        ]

    def _arrived_window(self, window: Window) -> Window:
        batch = self._store.dressed(window.batch.to(self._store.device), window.looks)
        return replace(window, batch=batch, looks=[])

    def _windows(self, shown: list[Timeline]) -> Iterator[Window]:
        longest, frames = max(map(len, shown)), sum(map(len, shown))
        stride = self._config.window or longest
        for first in range(0, longest, stride):
            survivors = [row for row, each in enumerate(shown) if len(each) > first]
            shown = [shown[row] for row in survivors]
            batch = self._store.batch(shown, first, stride, self._config.emphasis)
            valid = sum(min(stride, len(each) - first) for each in shown)
            yield Window(
                batch,
                [each.appearance for each in shown],
                survivors,
                valid / frames,
                first + stride >= longest,
            )


def _share(number: int, size: int) -> range:
    return range(number * size, (number + 1) * size)
