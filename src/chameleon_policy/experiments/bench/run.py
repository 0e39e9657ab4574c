"""The bench at work: several trainings side by side, evaluations in lanes of their own, a row for
each that is over.

What is in the results file or the folder is kept, so that the same command goes on after an
interruption.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rich.console import Console

from chameleon_policy.console import Bar
from chameleon_policy.device import Device, check_device
from chameleon_policy.exit_codes import ALREADY_TRAINED, STOPPED
from chameleon_policy.experiments.bench.board import Board, what
from chameleon_policy.experiments.bench.plan import Bench, Job
from chameleon_policy.experiments.bench.processes import NoRoomError, Processes, failure
from chameleon_policy.experiments.bench.rows import Results, Row, row_of
from chameleon_policy.policy.saving import NORMALIZER
from chameleon_policy.rates import Rate
from chameleon_policy.recorder import record_once
from chameleon_policy.report.evaluation_table import interval
from chameleon_policy.train.checkpoint import POLICY
from chameleon_policy.train.metrics import METRICS, read_metrics
from chameleon_policy.train.stopping import StopRequest

Work = tuple[Job, str | None]
"""A training, or the evaluation of its policy on a task."""
MakeRow = Callable[[Job, str, Path, str, float], Row]
SECONDS_BETWEEN_LOOKS = 0.5
EVALUATIONS = 2
"""At the same time: while one starts or comes to its last long episodes, the other has work for the
cores.
"""


class Launcher(Protocol):
    """What `Processes` is."""

    def run(self, command: Sequence[str], log: Path) -> int:
        """The exit status of a command, when it is over."""

    def stop(self) -> None:
        """End what runs, and start nothing more."""


@dataclass(frozen=True, kw_only=True)
class Workshop:
    """Where a bench works and with what."""

    out: Path
    """Folder for demonstrations and runs."""
    results: Results
    command: str
    """What was typed, for the results."""
    device: Device = "auto"
    side_by_side: int = 2
    """Trainings at the same time."""
    workers: int = 2
    """Processes that record and evaluate; trainings share as many threads for reading."""

    def __post_init__(self) -> None:
        for name in ("side_by_side", "workers"):
            if getattr(self, name) < 1:
                raise ValueError(
                    f"--{name.replace('_', '-')} must be at least 1, got {getattr(self, name)}"
                )
        if self.out.exists() and not self.out.is_dir():
            raise ValueError(f"--out must name a folder, and {self.out} is a file")
        check_device(self.device)


class BenchFailedError(ValueError):
    """Some jobs failed; the rows of all others are in the results."""


def run_bench(bench: Bench, workshop: Workshop, bar: Bar, console: Console) -> None:
    """Do what has no row yet. BenchFailedError if something failed, SystemExit if a signal asked to
    stop.
    """
    with workshop.results.only_here():
        jobs = [job for job in bench.jobs() if missing(job, workshop.results)]
        # all are made before the first is recorded: wrong ones refuse
        recordings = bench.recordings(workshop.out, jobs)
        for folder, recording in recordings.items():
            record_once(recording, folder, bar, workshop.workers)
        with StopRequest() as stop, Board(console, workshop.out) as board:
            failures = Lanes(workshop, board, Processes()).work(
                jobs, stopped=lambda: stop.signal is not None
            )
        if stop.signal is not None:
            console.print(
                "Stopped; trainings have saved themselves, and the same command goes on.",
                soft_wrap=True,
            )
            raise SystemExit(STOPPED + stop.signal)
    if failures:
        raise BenchFailedError(
            f"{len(failures)} failed: {', '.join(failures)}. What they said last stands above, and in the logs in "
            f"{workshop.out / bench.preset}; everything else is in {workshop.results.path}. When that is mended, the same "
            f"command goes on: {workshop.command}"
        )


def missing(job: Job, results: Results) -> list[str]:
    """Tasks of the job that have no row."""
    return [task for task in job.tasks if not results.holds(job.identity(task))]


def is_trained(job: Job, out: Path) -> bool:
    """Whether the budget is spent and the policy is the one from its end: it is saved after the
    last line of figures.
    """
    run = job.run(out)
    figures, policy = run / METRICS, run / POLICY / NORMALIZER  # the file that is written last
    if (
        not figures.is_file()
        or not policy.is_file()
        or policy.stat().st_mtime_ns < figures.stat().st_mtime_ns
    ):
        return False
    steps = [line["step"] for line in read_metrics(figures) if "loss" in line]
    return bool(steps) and steps[-1] >= job.bench.steps


class Lanes:
    """Trainings in as many lanes as are wanted, evaluations in two others: as soon as a policy is
    there, it plays.
    """

    def __init__(
        self, workshop: Workshop, board: Board, launcher: Launcher, make_row: MakeRow = row_of
    ) -> None:
        self._workshop, self._board, self._launcher, self._make_row = (
            workshop,
            board,
            launcher,
            make_row,
        )

    def work(self, jobs: Sequence[Job], stopped: Callable[[], bool] = lambda: False) -> list[str]:
        """Do all jobs; returns the names of what failed. However it ends, nothing runs any more
        then.

        What finds no room on the GPU is done again when all others are over, one after another.
        """
        failures: list[str] = []
        pending: dict[Future[None], Work] = {}
        crowded_out: list[Work] = []
        tried_again: set[Work] = set()
        trainings = ThreadPoolExecutor(self._workshop.side_by_side)
        evaluations = ThreadPoolExecutor(EVALUATIONS)

        def begin(job: Job, task: str | None = None) -> None:
            future = (
                trainings.submit(self._train, job)
                if task is None
                else evaluations.submit(self._evaluate, job, task)
            )
            pending[future] = job, task

        for job in jobs:
            begin(job)
        try:
            while (pending or crowded_out) and not stopped():
                if not pending:
                    tried_again.add(crowded_out[0])
                    begin(*crowded_out.pop(0))
                finished, _ = wait(pending, SECONDS_BETWEEN_LOOKS, FIRST_COMPLETED)
                self._board.refresh()
                for future in finished:
                    job, task = pending.pop(future)
                    try:
                        future.result()
                        if task is None:
                            for each in missing(job, self._workshop.results):
                                begin(job, each)
                    except Exception as error:  # whatever it is, it is that job's alone
                        if isinstance(error, NoRoomError) and (job, task) not in tried_again:
                            crowded_out.append((job, task))
                            self._board.say(
                                f"no room on the GPU for {what(job, task)}: again when all else is over"
                            )
                            continue
                        failures.append(what(job, task))
                        kind = (
                            ""
                            if isinstance(error, (ValueError, OSError))
                            else f"{type(error).__name__}: "
                        )
                        self._board.say(f"failed: {what(job, task)}: {kind}{error}", style="red")
        finally:
            for executor in (trainings, evaluations):
                executor.shutdown(wait=False, cancel_futures=True)
            self._launcher.stop()
            for executor in (trainings, evaluations):
                executor.shutdown()  # a row that is about to be written is written
        return failures

    def _train(self, job: Job) -> None:
        shop = self._workshop
        if is_trained(job, shop.out):
            return
        threads = max(1, shop.workers // shop.side_by_side)
        with self._board.line(job):
            self._run(job, None, job.train_command(shop.out, shop.device, threads))

    def _evaluate(self, job: Job, task: str) -> None:
        shop = self._workshop
        started = time.perf_counter()
        with self._board.line(job, task):
            processes = max(1, shop.workers // EVALUATIONS)
            self._run(job, task, job.eval_command(shop.out, task, shop.device, processes))
        row = self._make_row(job, task, shop.out, shop.command, time.perf_counter() - started)
        shop.results.append(row, shop.command)
        rates = (
            f"{name.upper()} {interval(Rate.from_dict(row[name]))}" for name in ("msr", "dsr", "sr")
        )
        self._board.say(f"{what(job, task)}: {', '.join(rates)}")

    def _run(self, job: Job, task: str | None, command: Sequence[str]) -> None:
        log = job.log(self._workshop.out, task)
        before = log.stat().st_size if log.exists() else 0
        status = self._launcher.run(command, log)
        if status not in (0, ALREADY_TRAINED):
            raise failure(status, log, before)
