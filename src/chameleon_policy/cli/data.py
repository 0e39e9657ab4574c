"""Summarise a dataset and draw a contact sheet."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console

from chameleon_policy.cli.options import UNSET
from chameleon_policy.data import RecordedDataset
from chameleon_policy.report.dataset_summary import save_contact_sheet, summary_table


def main(
    action: tyro.conf.Positional[Literal["inspect"]],
    folder: tyro.conf.Positional[Path],
    sheet: Annotated[Path | None, UNSET] = None,
) -> None:
    """Print a summary of a LeRobot v3 dataset and write a contact sheet.

    Args:
        action: What to do; there is only inspect.
        folder: Folder of the dataset.
        sheet: File for the contact sheet (default: contact-sheet.png in the dataset's folder).
    """
    dataset = RecordedDataset(folder)
    Console().print(summary_table(dataset))
    path = sheet or folder / "contact-sheet.png"
    if save_contact_sheet(dataset, path):
        print(f"Contact sheet: {path}")
    else:
        print("The dataset has no images, so there is no contact sheet.")
