"""The results file of a bench: one row per policy and task, complete at every moment."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from chameleon_policy.baselines import load_policy
from chameleon_policy.evaluate.evaluation import FIRST_SEED, evaluation_seeds
from chameleon_policy.experiments.bench.jobs import BenchJob
from chameleon_policy.json_files import read_json
from chameleon_policy.locking import only_process
from chameleon_policy.provenance import PROCESS_START, git_revision, hardware, software
from chameleon_policy.report.comparison.outcomes import FAILED, SUCCESS, WRONG, words
from chameleon_policy.suite import suite_named
from chameleon_policy.train.checkpoint import POLICY
from chameleon_policy.train.held_out import probe_metric
from chameleon_policy.train.metrics import METRICS, read_metrics
from chameleon_policy.writing import whole_file

Row = dict[str, Any]
IDENTITY = (
    "method",
    "task",
    "seed",
    "preset",
    "observation",
    "told",
    "image_size",
    "demonstrations",
    "steps",
    "trained_on",
    "episodes",
)
"""Two rows that agree in these are the same experiment."""
RATES = ("msr", "dsr", "sr", "chance", "reasons")
"""Scores of a row; only tasks with a decision have all of them."""
SHOWN = (*IDENTITY, "sr", "first_seed", "outcomes", "parameters")
"""Required fields of a row."""


class Results:
    """Rows in one JSON file; none if there is no file yet."""

    def __init__(self, path: Path) -> None:
        if path.is_dir():
            raise ValueError(f"--results must name a file, and {path} is a folder")
        if path.suffix != ".json":
            raise ValueError(
                f"--results must name a .json file (the tables take its other endings), got {path}"
            )
        self.path = path
        self._turn = threading.Lock()
        self._last = self._read()
        self._spent_before = float(self._last.get("duration_s", 0.0))

    @property
    def rows(self) -> list[Row]:
        """Rows of the file as it is now."""
        rows: list[Row] = self._read()["rows"]
        return rows

    def holds(self, identity: Mapping[str, Any]) -> bool:
        """Return whether this experiment has a row."""
        return any(all(row[name] == identity[name] for name in IDENTITY) for row in self.rows)

    def append(self, row: Row, command: str) -> None:
        """Add a row; an interrupted write leaves the file as it was."""
        with self._turn:
            # If the file was moved away since the last write, its rows are kept.
            rows = [*(self.rows if self.path.exists() else self._last["rows"]), row]
            document = {
                "command": command,
                "seeds": evaluation_seeds(FIRST_SEED, max(row["episodes"] for row in rows)),
                "hardware": hardware(),
                "software": software(),
                "git_revision": git_revision(),
                # of this process and the interrupted ones before it
                "duration_s": round(self._spent_before + time.monotonic() - PROCESS_START, 1),
                "rows": rows,
            }
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with whole_file(self.path) as unfinished:
                unfinished.write_text(json.dumps(document, indent=2) + "\n")
            self._last = document

    @contextmanager
    def only_here(self) -> Iterator[None]:
        """Hold a lock on this file against other benches."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lock = self.path.with_name(f".{self.path.name}.lock")
        with only_process(
            lock, f"another bench writes to {self.path}; wait for it, or choose another --results"
        ):
            try:
                yield
            finally:
                lock.unlink(missing_ok=True)  # results lie among files that people keep

    def _read(self) -> dict[str, Any]:
        if not self.path.exists():
            return {"rows": []}
        advice = "choose another --results, or move the file away"
        document = read_json(self.path, advice)
        if not isinstance(document, dict) or not isinstance(document.get("rows"), list):
            raise ValueError(f'{self.path} holds no results of a bench (no list "rows"); {advice}')
        for number, row in enumerate(document["rows"]):
            missing = [name for name in SHOWN if not isinstance(row, dict) or name not in row]
            if missing:
                raise ValueError(f"{self.path}: row {number} has no {', '.join(missing)}; {advice}")
            if not isinstance(row["outcomes"], str) or type(row["episodes"]) is not int:
                raise ValueError(
                    f"{self.path}: row {number}: outcomes must be letters and episodes a number; "
                    f"{advice}"
                )
            if len(row["outcomes"]) != row["episodes"]:
                raise ValueError(
                    f"{self.path}: row {number} has {row['episodes']} episodes and "
                    f"{len(row['outcomes'])} outcomes; {advice}"
                )
        return document


def row_of(job: BenchJob, task: str, out: Path, command: str, evaluation_seconds: float) -> Row:
    """Return the row of an evaluation that has just been written: scores, policy and cost."""
    document = json.loads(job.scores(out, task).read_text())
    scores = document["result"]
    run = job.run(out)
    policy = load_policy(run / POLICY)
    lines = read_metrics(run / METRICS)
    seconds = [line["seconds"] for line in lines if "loss" in line][-1]
    played = sorted(scores["rollouts"], key=lambda rollout: rollout["seed"])
    return {
        **job.identity(task),
        **{name: scores[name] for name in RATES if name in scores},
        "first_seed": played[0]["seed"],
        "outcomes": "".join(map(_letter, played)),
        "answers": words(rollout["z"] for rollout in played),
        "choices": words(rollout.get("choice") for rollout in played),
        "sampling_steps": scores["steps"],
        "executed": policy.executed if scores["executed"] is None else scores["executed"],
        "parameters": sum(weight.numel() for weight in policy.state_dict().values()),
        "minutes": seconds / 60,
        "probe": _probe(lines, job, task),
        "git_revision": document["git_revision"],
        "hardware": document["hardware"],
        "command": command,
        "duration_s": round(seconds + evaluation_seconds, 1),
    }


def _letter(rollout: Mapping[str, Any]) -> str:
    """Return the letter of an episode; only tasks with a decision have wrong choices."""
    if "decision" not in rollout:
        return SUCCESS if rollout["success"] else FAILED
    if not rollout["manipulation"]:
        return FAILED
    return SUCCESS if rollout["decision"] else WRONG


def _probe(lines: Sequence[Mapping[str, Any]], job: BenchJob, task: str) -> float | None:
    """Return the accuracy of the last probe of the task's answers; None where there was none."""
    instruction = suite_named(job.bench.suite).task(task).instruction
    name = "held_out_probe" if len(job.tasks) == 1 else probe_metric(instruction)
    found: list[float] = [line[name] for line in lines if name in line]
    return found[-1] if found else None
