"""Export a policy: trace, write, compare with the policy, and only then keep the directory."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from rich.table import Table

from chameleon_policy.export.check import Deviations, check_details, check_export
from chameleon_policy.export.manifest import MANIFEST, Runtime
from chameleon_policy.export.writing import (
    check_onnx_packages,
    check_replaceable,
    whole_directory,
    write_programs,
)
from chameleon_policy.train.checkpoint import load_trained


@dataclass(frozen=True, kw_only=True)
class ExportReport:
    """Files of an export and their deviations from the policy itself."""

    directory: Path
    method: str
    batch_size: int | None
    """None: any number of robots."""
    steps: int
    files: dict[str, int]
    """Size of each file in bytes."""
    deviations: tuple[Deviations, ...]
    no_onnx: str | None
    """Why there are no ONNX programs; None if there are."""
    seconds: float


def export_policy(
    run: Path | str,
    out: Path,
    *,
    steps: int | None = None,
    batch_size: int | None = None,
    onnx: bool = True,
    device: str = "cpu",
) -> ExportReport:
    """Write the programs of a run, a saved policy or a shipped one to the directory `out`.

    Args:
        run: Folder of a run or of a saved policy, or the name of a shipped policy.
        out: Directory to create, or an export to replace.
        steps: Sampling steps of a chunk (default: the policy's own).
        batch_size: Number of robots (default: any).
        onnx: Write ONNX programs, too.
        device: Where the torch programs compute.
    """
    start = time.monotonic()
    if batch_size is not None and batch_size < 1:
        raise ValueError(
            f"batch_size: expected at least 1, or None for any number of robots, got {batch_size}"
        )
    if torch.device(device).type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device: {device} was asked for, and torch finds no GPU; use cpu")
    if onnx:
        check_onnx_packages()
    check_replaceable(out)
    policy = load_trained(run, device)
    steps = policy.config.sampling_steps if steps is None else steps
    with whole_directory(out) as folder:
        manifest = write_programs(policy, folder, steps=steps, batch_size=batch_size, onnx=onnx)
        runtimes: tuple[Runtime, ...] = (
            ("torch", "onnx") if manifest.no_onnx is None else ("torch",)
        )
        deviations = check_export(folder, policy, runtimes, steps, batch_size)
        manifest = replace(
            manifest, details={**manifest.details, "check": check_details(deviations)}
        )
        (folder / MANIFEST).write_text(manifest.text())
        files = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
    return ExportReport(
        directory=out,
        method=policy.method,
        batch_size=batch_size,
        steps=steps,
        files=files,
        deviations=deviations,
        no_onnx=manifest.no_onnx,
        seconds=time.monotonic() - start,
    )


def export_table(report: ExportReport) -> Table:
    """Return a table with a row of deviations for every runtime and number of robots compared.

    The caption names the files, their sizes, and why there are no ONNX programs, if so.
    """
    robots = "any number of robots" if report.batch_size is None else f"{report.batch_size} robots"
    table = Table(title=f"{report.method}, {robots}, {report.steps} sampling steps")
    for column in ("programs", "robots", "memory", "working state", "actions"):
        table.add_column(column, justify="left" if column == "programs" else "right")
    for row in report.deviations:
        shares = (row.memory, row.working, row.actions)
        table.add_row(row.runtime, str(row.batch_size), *(f"{share:.1e}" for share in shares))
    files = ", ".join(f"{name} {size / 2**20:.1f} MiB" for name, size in report.files.items())
    missing = "" if report.no_onnx is None else f"\nNo ONNX programs: {report.no_onnx}"
    table.caption = (
        "Largest difference to the policy over a rollout, as a share of the largest value\n"
        f"{report.directory}: {files} ({report.seconds:.0f} s){missing}"
    )
    return table
