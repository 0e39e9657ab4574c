"""The files of a study: everything that was found in one JSON, and a figure for each property and task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from chameleon_policy.evaluate.camo import FIRST_SEED, evaluation_seeds
from chameleon_policy.report.probes.table import tables
from chameleon_policy.report.provenance import write_result


def publish(findings: Sequence[Mapping[str, Any]], out: Path, json_file: Path, command: str, console: Console) -> list[Path]:
    """Print the tables, write the JSON and the figures; returns what was written."""
    for table in tables(findings):
        console.print(table)
    seeds = evaluation_seeds(FIRST_SEED, max(finding["study"]["episodes"] for finding in findings))
    write_result(json_file, {"findings": [dict(finding) for finding in findings]}, command=command, seeds=seeds)
    return [json_file]
