"""An export for people: what was written, and how far it is from the policy itself."""

from __future__ import annotations

from rich.table import Table

from chameleon_policy.export.exporting import ExportReport


def export_table(report: ExportReport) -> Table:
    """One row for every runtime and number of robots that was tried, and a caption that says what
    else there is to know.
    """
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
