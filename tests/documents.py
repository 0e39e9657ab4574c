"""What the documents say: their tables, and the result files behind them."""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def result(name: str) -> dict:
    return json.loads((ROOT / "docs/results" / name).read_text())["result"]


def table_below(marker: str, page: str = README) -> list[list[str]]:
    """Cells of the table that follows <!-- table: marker --> in a page, without its heading."""
    lines = page.split(f"<!-- table: {marker} -->")[1].strip().splitlines()
    rows = []
    for line in lines:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows[2:]
