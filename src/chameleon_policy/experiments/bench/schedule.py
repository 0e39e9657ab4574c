"""The schedule of a bench: training and evaluation processes side by side.

Existing rows and runs are kept, so that the same command continues after an interruption.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from chameleon_policy.console import check_counts
from chameleon_policy.exit_codes import ALREADY_TRAINED, STOPPED
from chameleon_policy.experiments.bench.board import Board
from chameleon_policy.experiments.bench.jobs import Bench, BenchJob
from chameleon_policy.experiments.bench.processes import NoRoomError, Processes, failure
from chameleon_policy.experiments.bench.rows import Results, Row, row_of
from chameleon_policy.experiments.pipeline import Workspace
from chameleon_policy.policy.places import NORMALIZER
from chameleon_policy.rates import Rate, interval
from chameleon_policy.train.checkpoint import POLICY
from chameleon_policy.train.metrics import METRICS, read_metrics
from chameleon_policy.train.stopping import StopRequest

SECONDS_BETWEEN_REFRESHES = 0.5
EVALUATIONS = 2
"""Evaluations at the same time: while one starts or ends, the other uses the cores."""


class BenchFailedError(ValueError):
    """Some jobs failed; the rows of all others are in the results."""


def run_bench(bench: Bench, workspace: Workspace, results: Results, side_by_side: int) -> None:
    """Run the jobs that have no row yet.

    BenchFailedError if something failed, SystemExit if a signal asked to stop.
    """
    check_counts(side_by_side=side_by_side)
    with results.only_here():
        jobs = [job for job in bench.jobs() if missing(job, results)]
        workspace.record(bench.recordings(workspace.out, jobs))
        with StopRequest() as stop, Board(workspace.console, workspace.out) as board:
            schedule = Schedule(workspace, results, board, Processes(), side_by_side)
            failures = schedule.run(jobs, stopped=lambda: stop.signal is not None)
        if stop.signal is not None:
            workspace.say(
                "Stopped; the training runs are saved, and the same command continues them."
            )
            raise SystemExit(STOPPED + stop.signal)
    if failures:
        raise BenchFailedError(
            f"{len(failures)} failed: {', '.join(failures)}. Their last output stands above, and "
            f"all of it in the logs in {workspace.out / bench.preset}. The other rows are in "
            f"{results.path}. After a correction the same command continues: {workspace.command}"
        )


def missing(job: BenchJob, results: Results) -> list[str]:
    """Return the tasks of a job that have no row."""
    return [task for task in job.tasks if not results.holds(job.identity(task))]


def is_trained(job: BenchJob, out: Path) -> bool:
    """Return whether the budget is spent and the policy, saved after the last metrics, is final."""
    run = job.run(out)
    metrics, policy = run / METRICS, run / POLICY / NORMALIZER  # the file that is written last
    if not (metrics.is_file() and policy.is_file()):
        return False
    if policy.stat().st_mtime_ns < metrics.stat().st_mtime_ns:
        return False
    steps = [line["step"] for line in read_metrics(metrics) if "loss" in line]
    return bool(steps) and steps[-1] >= job.bench.steps


@dataclass(frozen=True)
class Work:
    """A training run, or the evaluation of its policy on a task."""

    job: BenchJob
    task: str | None = None

    @property
    def title(self) -> str:
        """The work in words."""
        return (
            f"training {self.job.name}" if self.task is None else f"{self.job.name} on {self.task}"
        )


class Schedule:
    """Runner of jobs: each policy is evaluated as soon as it is trained.

    Processes without room on the GPU run again after all others, one at a time.
    """

    def __init__(
        self,
        workspace: Workspace,
        results: Results,
        board: Board,
        processes: Processes,
        side_by_side: int,
        make_row: Callable[[BenchJob, str, Path, str, float], Row] = row_of,
    ) -> None:
        self._workspace, self._results, self._board = workspace, results, board
        self._processes, self._side_by_side, self._make_row = processes, side_by_side, make_row
        self._training_lanes = ThreadPoolExecutor(side_by_side)
        self._evaluation_lanes = ThreadPoolExecutor(EVALUATIONS)
        self._pending: dict[Future[None], Work] = {}
        self._crowded_out: list[Work] = []
        self._tried_again: set[Work] = set()
        self._failures: list[str] = []

    def run(
        self, jobs: Sequence[BenchJob], stopped: Callable[[], bool] = lambda: False
    ) -> list[str]:
        """Run all jobs; return the titles of those that failed. No process is left running."""
        try:
            for job in jobs:
                self._begin(Work(job))
            while (self._pending or self._crowded_out) and not stopped():
                if not self._pending:
                    self._tried_again.add(self._crowded_out[0])
                    self._begin(self._crowded_out.pop(0))
                finished, _ = wait(self._pending, SECONDS_BETWEEN_REFRESHES, FIRST_COMPLETED)
                self._board.refresh()
                for future in finished:
                    self._settle(future)
        finally:
            for executor in (self._training_lanes, self._evaluation_lanes):
                executor.shutdown(wait=False, cancel_futures=True)
            self._processes.stop()
            for executor in (self._training_lanes, self._evaluation_lanes):
                executor.shutdown()  # a row that is about to be written is written
        return self._failures

    def _begin(self, work: Work) -> None:
        if work.task is None:
            future = self._training_lanes.submit(self._train, work)
        else:
            future = self._evaluation_lanes.submit(self._evaluate, work, work.task)
        self._pending[future] = work

    def _settle(self, future: Future[None]) -> None:
        """Handle the end of a process."""
        work = self._pending.pop(future)
        try:
            future.result()
        except NoRoomError as error:
            if work in self._tried_again:
                self._fail(work, error)
            else:
                self._crowded_out.append(work)
                self._board.say(
                    f"no room on the GPU for {work.title}: it runs again, alone, at the end"
                )
        except Exception as error:  # the other jobs continue after any error
            self._fail(work, error)
        else:
            if work.task is None:
                for task in missing(work.job, self._results):
                    self._begin(Work(work.job, task))

    def _fail(self, work: Work, error: Exception) -> None:
        self._failures.append(work.title)
        expected = isinstance(error, (ValueError, OSError))
        kind = "" if expected else f"{type(error).__name__}: "
        self._board.say(f"failed: {work.title}: {kind}{error}", style="red")

    def _train(self, work: Work) -> None:
        workspace = self._workspace
        if is_trained(work.job, workspace.out):
            return
        threads = max(1, workspace.workers // self._side_by_side)
        with self._board.bar(work.title, work.job):
            self._run(work, work.job.train_command(workspace.out, workspace.device, threads))

    def _evaluate(self, work: Work, task: str) -> None:
        workspace, job = self._workspace, work.job
        out, command = workspace.out, workspace.command
        started = time.perf_counter()
        with self._board.bar(work.title):
            workers = max(1, workspace.workers // EVALUATIONS)
            self._run(work, job.eval_command(out, task, workspace.device, workers))
        row = self._make_row(job, task, out, command, time.perf_counter() - started)
        self._results.append(row, command)
        rates = (
            f"{name.upper()} {interval(Rate.from_dict(row[name]))}"
            for name in ("msr", "dsr", "sr")
            if name in row
        )
        self._board.say(f"{work.title}: {', '.join(rates)}")

    def _run(self, work: Work, command: Sequence[str]) -> None:
        log = work.job.log(self._workspace.out, work.task)
        before = log.stat().st_size if log.exists() else 0
        status = self._processes.run(command, log)
        if status not in (0, ALREADY_TRAINED):
            raise failure(status, log, before)
