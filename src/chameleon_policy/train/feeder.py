"""The feeder of the training loop: prepares batches, and measures the time spent on waiting."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Self

import torch
from accelerate import Accelerator

from chameleon_policy.policy import EpisodeBatch
from chameleon_policy.train.augmentation import (
    UNCHANGED,
    Appearance,
    Mirror,
    augment,
    draw_appearance,
)
from chameleon_policy.train.config import TrainingConfig
from chameleon_policy.train.sampling import (
    Timeline,
    appearance_generator,
    episodes_of_step,
    pace_generator,
    recorded_timeline,
    varied_timeline,
)
from chameleon_policy.train.store import EpisodeStore

PREFETCHED = 3
"""Steps whose batches are copied to the GPU ahead of time, if the episodes do not fit on it."""


@dataclass(frozen=True, eq=False)
class EpisodeWindow:
    """A stretch of time of the episodes of a sub-batch, on the device of the policy."""

    batch: EpisodeBatch
    survivors: list[int]
    """Rows of the previous window whose episodes go on in this one."""
    weight: float
    """Share of the sub-batch's valid time steps."""
    last: bool


SubBatches = dict[int, list[EpisodeWindow]]
"""The windows of each sub-batch that a process handles, by its index in the whole batch."""


def sampled_episodes(store: EpisodeStore, config: TrainingConfig, step: int) -> list[int]:
    """Return the indices of the episodes of a step's batch."""
    episodes = store.balanced_pass if config.equal_frames else None
    return episodes_of_step(config.seed, step, config.batch, store.lengths, episodes)


class Feeder:
    """The batches of this process, step after step.

    If the episodes do not lie on the GPU, a thread prepares them ahead of time, once the feeder is
    entered as a context.
    """

    def __init__(
        self,
        store: EpisodeStore,
        config: TrainingConfig,
        accelerator: Accelerator,
        first_step: int,
        mirror: Mirror | None = None,
    ) -> None:
        self._store, self._config, self._mirror = store, config, mirror
        self._size = config.batch // (accelerator.num_processes * config.accumulate)
        first = accelerator.process_index * config.accumulate
        self._indices = range(first, first + config.accumulate)
        self._step = first_step
        self._frames = 0
        self._waited, self._since = 0.0, time.perf_counter()
        self._thread: ThreadPoolExecutor | None = None
        self._prefetched: deque[Future[tuple[SubBatches, torch.cuda.Event]]] = deque()

    def __enter__(self) -> Self:
        if not self._store.resident:
            self._stream = torch.cuda.Stream(self._store.device)
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="prefetch")
            for step in range(self._step, self._step + PREFETCHED):
                self._prefetched.append(self._thread.submit(self._prefetch, step, self._stream))
        self.restart_clock()
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)

    def next_step(self) -> SubBatches:
        """Return this process's sub-batches of the next step."""
        started = time.perf_counter()
        if self._thread is None:
            sub_batches = self._sub_batches(self._step)
        else:
            sub_batches = _receive(*self._prefetched.popleft().result())
            ahead = self._step + PREFETCHED
            self._prefetched.append(self._thread.submit(self._prefetch, ahead, self._stream))
        episodes = sampled_episodes(self._store, self._config, self._step)
        self._frames += sum(self._store.lengths[episode] for episode in episodes)
        self._step += 1
        self._waited += time.perf_counter() - started
        return sub_batches

    def throughput(self, steps: int) -> dict[str, float]:
        """Return metrics of the time since the last call, which was `steps` steps ago.

        These are the frames per second (of the episodes as recorded), the share of time spent
        waiting for data, and the milliseconds per step.
        """
        passed = max(time.perf_counter() - self._since, 1e-9)
        metrics = {
            "frames_per_second": self._frames / passed,
            "data_wait": self._waited / passed,
            "step_ms": 1e3 * passed / steps,
        }
        self.restart_clock()
        return metrics

    def restart_clock(self) -> None:
        """Exclude the time since the last call of `throughput` from its metrics."""
        self._frames, self._waited, self._since = 0, 0.0, time.perf_counter()

    def _prefetch(
        self, step: int, stream: torch.cuda.Stream
    ) -> tuple[SubBatches, torch.cuda.Event]:
        """Prepare a step's sub-batches on a stream, with an event that marks their arrival."""
        with torch.cuda.stream(stream):
            return self._sub_batches(step), stream.record_event()

    def _sub_batches(self, step: int) -> SubBatches:
        episodes = sampled_episodes(self._store, self._config, step)
        sub_batches = {}
        for sub_batch in self._indices:
            indices = range(sub_batch * self._size, (sub_batch + 1) * self._size)
            timelines = [self._timeline(step, index, episodes[index]) for index in indices]
            appearances = [self._appearance(step, index) for index in indices]
            sub_batches[sub_batch] = list(self._windows(timelines, appearances))
        return sub_batches

    def _timeline(self, step: int, index: int, episode: int) -> Timeline:
        """Return the timeline of the episode at this index of a step's batch."""
        config, length = self._config, self._store.lengths[episode]
        if step < config.plain_steps or not config.varies_pace:
            return recorded_timeline(episode, length)
        return varied_timeline(
            episode,
            length,
            self._store.waits[episode],
            pace_generator(config.seed, step, index),
            config.uneven_pace,
            config.longer_retention,
        )

    def _appearance(self, step: int, index: int) -> Appearance:
        """Return the appearance of the episode at this index of a step's batch."""
        config = self._config
        if step < config.plain_steps or not config.varies_appearance:
            return UNCHANGED
        rng = appearance_generator(config.seed, step, index)
        return draw_appearance(rng, config.mirror, config.tint, config.warp)

    def _windows(
        self, timelines: Sequence[Timeline], appearances: Sequence[Appearance]
    ) -> Iterator[EpisodeWindow]:
        """Yield the windows of a sub-batch; images are augmented where the policy computes."""
        longest, frames = max(map(len, timelines)), sum(map(len, timelines))
        stride = self._config.window or longest
        for first in range(0, longest, stride):
            survivors = [row for row, timeline in enumerate(timelines) if len(timeline) > first]
            timelines = [timelines[row] for row in survivors]
            appearances = [appearances[row] for row in survivors]
            batch = self._store.batch(timelines, first, stride, self._config.emphasis)
            batch = augment(batch.to(self._store.device), appearances, self._mirror)
            valid = sum(min(stride, len(timeline) - first) for timeline in timelines)
            yield EpisodeWindow(batch, survivors, valid / frames, first + stride >= longest)


def _receive(sub_batches: SubBatches, arrival: torch.cuda.Event) -> SubBatches:
    """Return sub-batches that were copied on another stream, for use on the current one."""
    stream = torch.cuda.current_stream()
    stream.wait_event(arrival)
    for windows in sub_batches.values():
        for window in windows:
            window.batch.record_stream(stream)
    return sub_batches
