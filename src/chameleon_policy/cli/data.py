"""Summarise a dataset and draw a contact sheet."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import tyro

from chameleon_policy.cli.options import UNSET
from chameleon_policy.console import Terminal, printable
from chameleon_policy.data import RecordedDataset
from chameleon_policy.report.dataset_summary import save_contact_sheet, summarise

WORDS = "data inspect"
"""The command, as `--help` shows it: its first argument has only one value."""


def main(
    action: tyro.conf.Positional[Literal["inspect"]],
    folder: tyro.conf.Positional[Path],
    out: Annotated[Path | None, UNSET] = None,
) -> None:
    """Print a summary of a LeRobot v3 dataset and write a contact sheet, outside the dataset.

    Args:
        action: What to do; there is only inspect.
        folder: Folder of the dataset.
        out: File for the contact sheet (default: NAME-contact-sheet.png in the working directory).
    """
    dataset = RecordedDataset(folder)
    table, refusals = summarise(dataset)
    Terminal().print(table)
    path = out or Path(f"{folder.resolve().name}-contact-sheet.png")
    if save_contact_sheet(dataset, path):
        print(f"Contact sheet: {printable(str(path))}")
    else:
        print("The dataset has no images, so there is no contact sheet.")
    if refusals:
        raise ValueError(f"{folder} cannot be trained on. {'; '.join(refusals)}")
