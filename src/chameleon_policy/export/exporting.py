"""What `chameleon export` does: trace, write, try what was written beside the policy, and only then
keep it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

import torch
from rich.table import Table

from chameleon_policy import __version__
from chameleon_policy.export.check import Errors, check_export, described
from chameleon_policy.export.directory import check_place, whole_directory
from chameleon_policy.export.manifest import FILES, MANIFEST, Manifest, Runtime, digest
from chameleon_policy.export.onnx_files import check_packages, write_onnx
from chameleon_policy.export.programs import trace_act, trace_observe
from chameleon_policy.policy import VisuomotorPolicy
from chameleon_policy.policy.config import to_json
from chameleon_policy.provenance import git_revision
from chameleon_policy.train.checkpoint import load_trained


@dataclass(frozen=True, kw_only=True)
class ExportReport:
    """What was written, and how far it is from the policy itself."""

    directory: Path
    method: str
    batch_size: int | None
    """None: any number of robots."""
    steps: int
    files: dict[str, int]
    """Bytes of each."""
    errors: tuple[Errors, ...]
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
    """Write the policy of a run, or a saved or shipped one, to the directory `out` as programs for
    `observe` and `act`.

    `steps` is the number of sampling steps of a chunk (default: the policy's own), `batch_size` the
    number of robots (default: any), `device` where the torch programs compute.
    """
    start = time.monotonic()
    if batch_size is not None and batch_size < 1:
        raise ValueError(
            f"batch_size: expected at least 1, or None for any number of robots, got {batch_size}"
        )
    if torch.device(device).type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device: {device} was asked for, and torch finds no GPU; use cpu")
    if onnx:
        check_packages()
    check_place(out)
    policy = load_trained(run, device)
    steps = policy.config.sampling_steps if steps is None else steps
    with whole_directory(out) as folder:
        manifest = write_programs(policy, folder, steps=steps, batch_size=batch_size, onnx=onnx)
        errors = check_export(folder, policy, _written(manifest), steps, batch_size)
        manifest = replace(manifest, details={**manifest.details, "check": described(errors)})
        (folder / MANIFEST).write_text(manifest.text())
        files = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
    return ExportReport(
        directory=out,
        method=policy.method,
        batch_size=batch_size,
        steps=steps,
        files=files,
        errors=errors,
        no_onnx=manifest.no_onnx,
        seconds=time.monotonic() - start,
    )


def write_programs(
    policy: VisuomotorPolicy, folder: Path, *, steps: int, batch_size: int | None, onnx: bool
) -> Manifest:
    """The programs and their manifest, not yet checked against the policy."""
    traced = {
        "observe": trace_observe(policy, batch_size),
        "act": trace_act(policy, steps, batch_size),
    }
    no_onnx = None if onnx else "it was exported without them"
    if onnx:
        for name, file in FILES["onnx"].items():
            if (reason := write_onnx(traced[name], folder / file)) is not None:
                no_onnx = f"{name}: {reason}"
                break
    if no_onnx is not None:  # one without the other would be of no use
        for file in FILES["onnx"].values():
            (folder / file).unlink(missing_ok=True)
    for name, file in FILES["torch"].items():
        # nobody needs an empty memory and black pictures in the file
        traced[name].program.example_inputs = None
        torch.export.save(traced[name].program, folder / file)
    manifest = Manifest(
        method=policy.method,
        batch_size=batch_size,
        sampling_steps=steps,
        executed=policy.executed,
        device=str(policy.device),
        observe=traced["observe"].signature,
        act=traced["act"].signature,
        no_onnx=no_onnx,
        files={path.name: digest(path) for path in sorted(folder.iterdir())},
        details={
            "features": to_json(policy.features),
            "statistics_inside_the_programs": to_json(policy.statistics),
            "versions": _versions(onnx),
            "trained": policy.provenance,
            "git_revision": git_revision(),
        },
    )
    (folder / MANIFEST).write_text(manifest.text())
    return manifest


def _written(manifest: Manifest) -> tuple[Runtime, ...]:
    return ("torch", "onnx") if manifest.no_onnx is None else ("torch",)


def _versions(onnx: bool) -> dict[str, str]:
    packages = ("onnx", "onnxscript", "onnxruntime") if onnx else ()
    return {
        "chameleon-policy": __version__,
        "torch": torch.__version__,
        **{name: version(name) for name in packages},
    }


def export_table(report: ExportReport) -> Table:
    """Return a table with a row for every runtime and number of robots that was compared."""
    robots = "any number of robots" if report.batch_size is None else f"{report.batch_size} robots"
    table = Table(title=f"{report.method}, {robots}, {report.steps} sampling steps")
    for column in ("programs", "robots", "memory", "working state", "actions"):
        table.add_column(column, justify="left" if column == "programs" else "right")
    for errors in report.errors:
        shares = (errors.memory, errors.working, errors.actions)
        table.add_row(errors.runtime, str(errors.batch_size), *(f"{share:.1e}" for share in shares))
    missing = "" if report.no_onnx is None else f"\nNo ONNX programs: {report.no_onnx}"
    table.caption = (
        "Largest difference to the policy over a rollout, as a share of the largest value\n"
        f"{report.directory}: {', '.join(f'{name} {size / 2**20:.1f} MiB' for name, size in report.files.items())} "
        f"({report.seconds:.0f} s){missing}"
    )
    return table
