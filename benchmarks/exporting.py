"""Compare exported programs with the policy itself on this CPU: speed and numerical error.

    python -m benchmarks.exporting --every-method --out docs/results/exporting.json

`observe` and `act` run with one thread. All candidates take turns in one process; times are
medians, and the ratios are what counts.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import tyro
from rich.console import Console
from rich.table import Table

from benchmarks import with_arguments
from benchmarks.serving import STATE
from benchmarks.timing import take_turns
from chameleon_policy import ChameleonPolicy, FastControl, Statistics, preset
from chameleon_policy.baselines import METHODS, load_policy
from chameleon_policy.export.check import as_arrays, random_observation
from chameleon_policy.export.exporting import ExportReport, export_policy
from chameleon_policy.export.manifest import read_manifest
from chameleon_policy.export.runtime import ExportedPolicy
from chameleon_policy.provenance import write_result

COMMAND = "python -m benchmarks.exporting"
SEED = 0
CPU = torch.device("cpu")
THREADS = (1,)
"""One, since with more the runtimes keep threads spinning for one another."""
Calls = dict[str, dict[str, Callable[[], object]]]


def calls(policy: ChameleonPolicy, folder: Path, threads: int) -> Calls:
    """Return `observe` and `act` of every candidate, for one robot that has a memory."""
    generator = torch.Generator().manual_seed(SEED)
    steps = read_manifest(folder).sampling_steps
    seen = random_observation(policy, 1, generator)
    arrays = as_arrays(seen)
    noise = torch.randn(1, policy.features.horizon, policy.features.action, generator=generator)
    state, control = policy.observe(seen, policy.initial_state()), FastControl(policy)
    control.observe(seen)
    found: Calls = {
        "observe": {
            "eager": lambda: policy.observe(seen, state),
            "FastControl": lambda: control.observe(seen),
        },
        "act": {
            "eager": lambda: policy.act(state, steps=steps, source=noise),
            "FastControl": lambda: control.act(steps=steps, source=noise),
        },
    }
    exported = {
        "torch.export": ExportedPolicy(folder, "torch"),
        "ONNX Runtime": ExportedPolicy(folder, threads=threads),
    }
    for name, each in exported.items():
        _add(found, name, each, arrays, noise.numpy())
    return found


def _add(
    found: Calls, name: str, exported: ExportedPolicy, arrays: dict[str, Any], noise: Any
) -> None:
    memory = exported.observe(arrays, exported.initial_state())
    found["observe"][name] = lambda: exported.observe(arrays, memory)
    found["act"][name] = lambda: exported.act(memory, noise=noise)


def measure(policy: ChameleonPolicy, folder: Path, threads: int, rounds: int) -> dict[str, Any]:
    """Time every candidate in milliseconds and relative to eager code."""
    torch.set_num_threads(threads)
    rows: dict[str, Any] = {}
    for call, candidates in calls(policy, folder, threads).items():
        seconds = take_turns(candidates, CPU, rounds)
        rows[call] = {
            name: {"ms": 1000 * median, "times_as_fast": seconds["eager"] / median}
            for name, median in seconds.items()
        }
    return rows


def errors_of(report: ExportReport) -> dict[str, float]:
    """Return the largest errors of all runtimes and batch sizes, as shares of the largest value."""
    return {
        name: max(getattr(each, name) for each in report.deviations)
        for name in ("memory", "working", "actions")
    }


def errors_of_methods(folder: Path) -> dict[str, dict[str, float]]:
    """Return the errors of untrained nano policies of every method, with three sampling steps."""
    found = {}
    for name, kind in METHODS.items():
        torch.manual_seed(SEED)
        kind.for_control(preset("nano"), STATE, Statistics()).eval().save_pretrained(folder / name)
        found[name] = errors_of(export_policy(folder / name, folder / f"{name}-exported", steps=3))
    return found


def main(
    policy: str = "camo-small",
    every_method: bool = False,
    rounds: int = 100,
    out: Path = Path("runs/exporting.json"),
) -> None:
    """Measure, print, and write the result.

    Args:
        policy: Policy to export.
        every_method: Also measure the errors of an untrained policy of every method (minutes).
        rounds: Turns of every candidate.
        out: File to write.
    """
    with tempfile.TemporaryDirectory() as temporary:
        errors = errors_of_methods(Path(temporary)) if every_method else {}
        report = export_policy(policy, Path(temporary) / "exported")
        errors[policy], folder = errors_of(report), report.directory
        loaded = load_policy(policy).float()
        if not isinstance(loaded, ChameleonPolicy):
            raise ValueError(
                f"{policy}: expected a Chameleon, which FastControl takes too; got {loaded.method}"
            )
        steps = read_manifest(folder).sampling_steps
        result: dict[str, Any] = {
            "policy": policy,
            "sampling_steps": steps,
            "rounds": rounds,
            "errors": errors,
            "threads": {},
        }
        for threads in THREADS:
            result["threads"][str(threads)] = measure(loaded, folder, threads, rounds)
    print_result(result)
    write_result(out, result, command=with_arguments(COMMAND), seeds=[SEED])


def print_result(result: dict[str, Any]) -> None:
    """Print the time of every candidate."""
    steps = result["sampling_steps"]
    table = Table(
        title=f"{result['policy']}, one robot, {steps} sampling steps: "
        "ms, and times as fast as eager"
    )
    for column in ("threads", "call", *next(iter(result["threads"].values()))["observe"]):
        table.add_column(column, justify="right")
    for number, rows in result["threads"].items():
        for call, row in rows.items():
            cells = [f"{each['ms']:.1f} ({each['times_as_fast']:.2f})" for each in row.values()]
            table.add_row(number, call, *cells)
    Console().print(table)


if __name__ == "__main__":
    tyro.cli(main, prog=COMMAND)
