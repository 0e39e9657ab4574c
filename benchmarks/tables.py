"""Write tables of the documents from `docs/results/`: no number is typed by hand.

    python -m benchmarks.tables

A table stands below its marker, `<!-- table: half-lives -->`; a test says that writing it again
changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from benchmarks.delayed_question import EMPTIED, KINDS
from benchmarks.performance.state_space import LAYER_PEERS
from chameleon_policy.rates import Rate

COMMAND = "python -m benchmarks.tables"
ROOT = Path(__file__).parents[1]
FOR_EVER = 1_000_000
"""Control steps."""
MACHINES = ("2 CPU cores", "H200")
"""Those of the two performance files."""
Result = Mapping[str, Any]


@dataclass(frozen=True)
class Table:
    """Where a table stands, the result files it is made of, and what makes it."""

    page: str
    files: tuple[str, ...]
    make: Callable[..., str]

    def text(self) -> str:
        """Make the table."""
        results = (
            json.loads((ROOT / "docs/results" / name).read_text())["result"] for name in self.files
        )
        return self.make(*results)


def main() -> None:
    """Write every table into its page."""
    for marker, table in TABLES.items():
        path = ROOT / table.page
        path.write_text(
            replaced(path.read_text(), f"<!-- table: {marker} -->", table.text(), table.page)
        )
        print(f"{table.page}: {marker}")


def replaced(page: str, marker: str, text: str, where: object = "the page") -> str:
    """Return the page with the table below a marker replaced."""
    before, found, after = page.partition(f"{marker}\n")
    if not found:
        raise ValueError(f"{where} has no line {marker}")
    rest = after.splitlines(keepends=True)
    while rest and rest[0].startswith("|"):
        rest.pop(0)
    return f"{before}{found}{text}\n{''.join(rest)}"


def markdown(heading: str, rows: list[list[str]]) -> str:
    """Lay out a table; the cells of its heading are separated by bars."""
    columns = heading.split("|")
    lines = [f"| {' | '.join(cell.strip() for cell in columns)} |", "|---" * len(columns) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def half_lives(result: Result) -> str:
    """Show how long heads remember on still inputs, in control steps."""
    rows = []
    for row in result["rows"]:
        shortest, longest = row["set_to"]
        quantiles = " / ".join(_steps(value) for value in row["quantiles"])
        rows.append(
            [
                row["policy"],
                row["layer"],
                f"{shortest:g} to {longest:g}",
                "-" if row["limit"] is None else f"{row['limit']:g}",
                quantiles,
                f"{row['above_64']:.0%}",
            ]
        )
    return markdown(
        "policy | layer | set to | limit | 5 / 25 / 50 / 75 / 95 % of heads and streams | above 64 steps",
        rows,
    )


def _steps(value: float) -> str:
    if value > FOR_EVER:
        return f"> {FOR_EVER:,}"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def small_cards(result: Result) -> str:
    """Show what the hungriest kernels need of cards."""
    rows = []
    for row in result["rows"]:
        spilled = (
            "0"
            if row["spilled_bytes"] == 0
            else f"{row['spilled_bytes']} (`{row['most_spilled']}`)"
        )
        rows.append(
            [
                f"{row['card']}: {row['names']}",
                f"`{row['preset']}`",
                str(len(row["kernels"])),
                f"{row['shared_kib']:.0f} of {row['card_kib']} (`{row['largest']}`)",
                str(row["registers"]),
                spilled,
            ]
        )
    heading = "card | preset | kernels | shared memory of a block, KiB | registers of a thread | spilled bytes of a thread"
    return markdown(heading, rows)


def delayed_question(*results: Result) -> str:
    """Show the score of every training seed of every method; a column is a toy and how long it was
    trained.
    """
    found = [row for result in results for row in result["rows"]]
    optimizers = {(row["optimizer"], row["learning_rate"]) for row in found}
    if len(optimizers) > 1:
        raise ValueError(f"one table, one optimizer: {sorted(optimizers)}")
    columns = list(dict.fromkeys((_trained(row), count) for row in found for count in _counts(row)))
    rows = []
    for method in (method for method in KINDS if method in {row["method"] for row in found}):
        cells = []
        for trained, count in columns:
            here = [row for row in found if row["method"] == method and _trained(row) == trained]
            cells.append(_seeds(here, lambda row, count=count: row["scores"][count]))
        rows.append([f"`{method}`", *cells])
    return markdown(
        " | ".join(["method", *(_named(trained, count) for trained, count in columns)]), rows
    )


def emptied(*results: Result) -> str:
    """Show what is still answered when traces or working state are emptied just before the
    question.
    """
    found = [row for result in results for row in result["rows"] if row.get("emptied")]
    rows = []
    for trained, count in dict.fromkeys(
        (_trained(row), count) for row in found for count in _counts(row)
    ):
        for method in KINDS:
            here = [row for row in found if row["method"] == method and _trained(row) == trained]
            if here:
                cells = [_seeds(here, lambda row, count=count: row["scores"][count])]
                for part in EMPTIED:
                    cells.append(
                        _seeds(
                            here, lambda row, part=part, count=count: row["emptied"][part][count]
                        )
                    )
                rows.append([_named(trained, count), f"`{method}`", *cells])
    return markdown("asked | method | whole memory | traces emptied | working state emptied", rows)


def _seeds(rows: list[Result], rate: Callable[[Result], Mapping[str, Any]]) -> str:
    """Write one number for each seed, in order."""
    ordered = sorted(rows, key=lambda row: row["seed"])
    return ", ".join(f"{100 * Rate.from_dict(rate(row)).value:.0f}" for row in ordered) or "-"


def _trained(row: Result) -> tuple[str, int, int, str]:
    return row["task"], row["steps"], row["batch"], row["precision"]


def _counts(row: Result) -> list[str]:
    counts = sorted(row["scores"], key=int)
    return counts if row["task"] == "tracking" else counts[-1:]


def _named(trained: tuple[str, int, int, str], count: str) -> str:
    task, steps, batch, precision = trained
    asked = f"tracking, {count} swaps" if task == "tracking" else f"question, {count} items"
    return f"{asked} ({steps:,} steps of {batch}, {precision})"


def performance(result: Result) -> str:
    """Show training and control beside plain code, peers and what was set out for."""
    training, control = result["training"], result["control"]
    (ours, plain), fast = (training[name] for name in ("ours", "plain")), control["fast"]
    rows = [
        [
            "training step, `paper`, 64 x 64 frames, two 128 x 128 views",
            f"{ours['step_ms']:.0f} ms",
            f"{plain['step_ms']:.0f} ms, plain eager bf16",
            f"{training['speedup']:.1f} x",
            "4 x",
        ],
        ["its peak memory", _gib(ours), _gib(plain), f"{training['memory_ratio']:.2f}", "0.5"],
    ]
    for name, label, wanted in (
        ("observe", "`observe`, two 224 x 224 views", "1.5 ms"),
        ("act_8", "`act`, 8 Euler steps", "1 ms"),
        ("act_50", "`act`, 50 Euler steps", "5 ms"),
    ):
        latency, eager = (
            f"{fast[name]['p50_ms']:.2f} ms, p99 {fast[name]['p99_ms']:.2f}",
            control["eager"][name]["p50_ms"],
        )
        rows.append(
            [
                label,
                latency,
                f"{eager:.1f} ms, eager",
                f"{eager / fast[name]['p50_ms']:.1f} x",
                wanted,
            ]
        )
    whole = fast["observe"]["p50_ms"] + fast["act_8"]["p50_ms"]
    for name, peer in control["peers"].items():
        beside = f"{peer['p50_ms']:.1f} ms, {name} ({peer['parameters'] / 1e6:.1f}M)"
        ratio = f"{peer['p50_ms'] / whole:.1f} x"
        rows.append(["new pictures to a chunk of 16 actions", f"{whole:.2f} ms", beside, ratio, ""])
    return markdown(" | ours | next to it | ratio | wanted", rows)


def rewrite(before: Result, after: Result) -> str:
    """Show a step and a tick before and after the kernels moved out of the model, and with small
    blocks.
    """

    def figures(result: Result, name: str, control: str) -> list[str]:
        training, ticks = result["training"], result["control"][control]
        ours, plain = training[name], training["plain"]
        memory = ours["peak_memory_bytes"] / plain["peak_memory_bytes"]
        return [
            f"{ours['step_ms']:.1f} ms",
            f"{plain['step_ms'] / ours['step_ms']:.2f} x",
            f"{memory:.2f}",
            *(f"{ticks[each]['p50_ms']:.2f} ms" for each in ("observe", "act_8", "act_50")),
        ]

    rows = [
        ["kernels inside the model, no limit", *figures(before, "ours", "fast")],
        ["fused twins, with the limit", *figures(after, "ours", "fast")],
        [
            "the same with the blocks of a 99 KiB card",
            *figures(after, "small_blocks", "small_blocks"),
        ],
    ]
    heading = " | training step | plain / ours | memory, ours / plain | `observe` | `act`, 8 steps | `act`, 50 steps"
    return markdown(heading, rows)


def late(result: Result) -> str:
    """Show `observe` late in an episode."""
    rows = [
        [f"{int(t):,}", f"{row['p50_ms']:.2f} ms", f"{row['state_bytes'] / 2**20:.1f} MiB"]
        for t, row in result["control"]["late"].items()
    ]
    return markdown("t | p50 | memory", rows)


def length(result: Result) -> str:
    """Show the memory layers against the length of an episode."""
    rows = []
    for steps, row in result["length"]["lengths"].items():
        ours, plain = row["ours"], row["plain"]
        times = [
            f"{ours['ms']:.1f} ms",
            f"{plain['ms']:.1f} ms",
            f"{plain['ms'] / ours['ms']:.1f} x",
        ]
        rows.append([steps, *times, _gib(ours), _gib(plain)])
    return markdown("steps | ours | plain | ratio | peak memory | plain", rows)


def _gib(row: Result) -> str:
    return f"{row['peak_memory_bytes'] / 2**30:.1f} GiB"


def kinds(result: Result) -> str:
    """Show where the time of a training step goes."""
    return markdown(
        "kind of kernel | ms", [[name, f"{ms:.1f}"] for name, ms in result["kinds"].items()]
    )


def control(*results: Result) -> str:
    """Show that a control step costs the same at any time."""
    rows = []
    for machine, result in zip(MACHINES, results, strict=True):
        ticks = result["control"]["late"]
        first = ticks["10"]["p50_ms"]
        ratios = [
            f"{ticks[t]['p50_ms'] / first:.2f}" if t in ticks else "-" for t in ("1000", "100000")
        ]
        (size,) = {row["state_bytes"] for row in ticks.values()}
        rows.append(
            [
                result["control"]["preset"],
                machine,
                f"{first:.1f} ms",
                *ratios,
                f"{size / 2**20:.1f} MiB",
            ]
        )
    return markdown(
        "policy | hardware | `observe` at t = 10 | t = 1,000 | t = 100,000 | memory", rows
    )


def state_space(*results: Result) -> str:
    """Show the state-space layer and what its peers take as a multiple of our time."""
    rows = []
    for machine, result in zip(MACHINES, results, strict=True):
        for shape, row in result["ssm"]["shapes"].items():
            times = row["forward_backward_ms"]
            ratios = [
                f"{times[peer] / times['ours']:.1f}" if peer in times else "-"
                for peer in LAYER_PEERS
            ]
            rows.append([machine, shape, f"{times['ours']:.1f} ms", *ratios])
    return markdown("hardware | streams x steps | ours | transformers' Mamba2 | mamba-ssm", rows)


SPEED, SPEEDS = ("performance-h200.json",), ("performance-cpu.json", "performance-h200.json")
QUESTIONS = ("delayed-question.json", "delayed-question-h200.json")
TABLES = {
    "half-lives": Table("docs/deviations.md", ("half-lives.json",), half_lives),
    "small-cards": Table("docs/performance.md", ("small-cards.json",), small_cards),
    "delayed-question": Table("docs/baselines.md", QUESTIONS, delayed_question),
    "emptied": Table("docs/baselines.md", QUESTIONS, emptied),
    "performance": Table("docs/performance.md", SPEED, performance),
    "rewrite": Table("docs/performance.md", ("performance-h200-before.json", *SPEED), rewrite),
    "late": Table("docs/performance.md", SPEED, late),
    "length": Table("docs/performance.md", SPEED, length),
    "kinds": Table("docs/performance.md", SPEED, kinds),
    "control": Table("README.md", SPEEDS, control),
    "ssm": Table("README.md", SPEEDS, state_space),
}
"""By marker."""


if __name__ == "__main__":
    tyro.cli(main, prog=COMMAND)
