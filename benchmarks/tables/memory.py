"""Tables of memories: half-lives, delayed questions, emptied memories, initialisation, probes."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.tables.layout import Result, Rows, markdown, rate_cell
from chameleon_policy.probes.prospectiveness import ready
from chameleon_policy.rates import Rate, percent
from chameleon_policy.report import paper
from chameleon_policy.report.paper import NAMES

LONGEST = 1_000_000
"""Largest half-life that is written out, in control steps."""
METHODS = (
    "lstm",
    "vanilla-mamba",
    "similarity",
    "transformer-64",
    "undirected",
    "no-jepa",
    "constant-index",
    "brief",
    "chameleon-without-limit",
    "chameleon",
)
"""Order of the methods in tables of delayed questions."""
PROBED = {
    "chameleon-4000steps-seed0": "Chameleon",
    "brief-4000steps-seed0": "w/o lasting working state",
    "chameleon-1500steps-seed0-state-clean-plate": "Chameleon, nano",
    "no-jepa-1500steps-seed0-state-clean-plate": "w/o Control-JEPA, nano",
}
"""Run -> name of its policy."""


def half_lives(result: Result) -> str:
    """List how long heads remember on still inputs, in control steps."""
    rows = []
    for row in result["rows"]:
        shortest, longest = row["set_to"]
        cells = [
            row["policy"],
            row["layer"],
            f"{shortest:g} to {longest:g}",
            "-" if row["limit"] is None else f"{row['limit']:g}",
            " / ".join(map(_steps, row["quantiles"])),
            f"{row['above_64']:.0%}",
        ]
        rows.append(cells)
    heading = "policy | layer | set to | limit | 5 / 25 / 50 / 75 / 95 % of heads and streams"
    return markdown(f"{heading} | above 64 steps", rows)


def _steps(value: float) -> str:
    if value > LONGEST:
        return f"> {LONGEST:,}"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def delayed_question(*results: Result) -> str:
    """List the score of every training seed by method; one column for each toy and training."""
    found = [row for result in results for row in result["rows"]]
    columns = list(dict.fromkeys((_trained(row), count) for row in found for count in _counts(row)))
    rows = []
    for method in (method for method in METHODS if method in {row["method"] for row in found}):
        cells = []
        for trained, count in columns:
            seeds = [row for row in found if row["method"] == method and _trained(row) == trained]
            cells.append(_seeds(seeds, lambda row, count=count: row["scores"][count]))
        rows.append([f"`{method}`", *cells])
    return markdown(" | ".join(["method", *(_asked(*column) for column in columns)]), rows)


def emptied(*results: Result) -> str:
    """List the answers left when traces or working state are emptied just before the question."""
    found = [row for result in results for row in result["rows"] if row.get("emptied")]
    columns = dict.fromkeys((_trained(row), count) for row in found for count in _counts(row))
    rows = []
    for trained, count in columns:
        for method in METHODS:
            seeds = [row for row in found if row["method"] == method and _trained(row) == trained]
            if not seeds:
                continue
            cells = [_seeds(seeds, lambda row, count=count: row["scores"][count])]
            for part in ("traces", "working"):
                cells.append(
                    _seeds(seeds, lambda row, part=part, count=count: row["emptied"][part][count])
                )
            rows.append([_asked(trained, count), f"`{method}`", *cells])
    return markdown("asked | method | whole memory | traces emptied | working state emptied", rows)


def _seeds(rows: list[Result], rate: Callable[[Result], Result]) -> str:
    """Format one number for each training seed, in order."""
    ordered = sorted(rows, key=lambda row: row["seed"])
    return ", ".join(f"{100 * Rate.from_dict(rate(row)).value:.0f}" for row in ordered) or "-"


def _trained(row: Result) -> tuple[str, int, int, str, float, str]:
    names = ("task", "steps", "batch", "optimizer", "learning_rate", "precision")
    task, steps, batch, optimizer, rate, precision = (row[name] for name in names)
    return task, steps, batch, optimizer, rate, precision


def _counts(row: Result) -> list[str]:
    counts = sorted(row["scores"], key=int)
    return counts if row["task"] == "tracking" else counts[-1:]


def _asked(trained: tuple[str, int, int, str, float, str], count: str) -> str:
    task, steps, batch, optimizer, rate, precision = trained
    toy = f"tracking, {count} swaps" if task == "tracking" else f"question, {count} items"
    named = {"adamw": "AdamW", "muon": "Muon"}[optimizer]
    return f"{toy} ({steps:,} steps of {batch}, {named} {rate:g}, {precision})"


def which_memory(small: Result, nano: Result) -> str:
    """List DSR and MSR after one memory or both were emptied at the decision."""
    parts = ("nothing", "slow", "fast", "both")
    rows: Rows = []
    for size, result in (("small", small), ("nano", nano)):
        found = {(row["method"], row["task"], row["emptied"]): row for row in result["rows"]}
        for method, task in dict.fromkeys((method, task) for method, task, _ in found):
            cells = []
            for part in parts:
                row = found[method, task, part]
                cells.append(f"{rate_cell(row['dsr'])} / {percent(row['msr']['value'])}")
            rows.append([f"{NAMES[method]}, {size}", task, *cells])
    return markdown("policy | task | nothing emptied | slow | fast | both", rows)


def brief(result: Result, bench: list[Result]) -> str:
    """Compare DSR with and without a working state that remembers, at the nano size."""
    forgets = {row["method"].removeprefix("brief-"): row for row in result["rows"]}
    remembers = {row["method"]: row for row in bench if row["preset"] == "nano"}
    rows = [
        [NAMES[method], rate_cell(remembers[method]["dsr"]), rate_cell(forgets[method]["dsr"])]
        for method in ("chameleon", "constant-index", "vanilla-mamba", "similarity")
    ]
    return markdown("nano, clean-plate | fast layer remembers | fast layer forgets", rows)


def initialisation(result: Result) -> str:
    """List the seeds that learn delayed recall with one choice of initialisation undone."""
    rows = []
    for variant, seeds in result["first_step_at_97_percent"].items():
        learned = sorted(step for step in seeds.values() if step is not None)
        steps = ", ".join(map(str, learned)) or "-"
        rows.append([variant, f"{len(learned)} of {len(seeds)}", steps])
    return markdown("initialisation | seeds that learned it | at step", rows)


def _findings(*results: Result) -> dict[tuple[str, str], Result]:
    """Return probe results by policy and task."""
    return {
        (PROBED[finding["run"]], finding["task"]): finding
        for result in results
        for finding in result["findings"]
    }


def separability(*results: Result) -> str:
    """List how well z is read from what is seen and from h at the decision."""
    rows = []
    for (policy, task), finding in _findings(*results).items():
        found = finding["separability"]
        published = paper.SEPARABILITY.get(task) if "nano" not in policy else None
        rates = [rate_cell(found[name]) for name in ("current", "memory", "shuffled")]
        cells = [policy, task, f"{100 * found['chance']:.1f}", *rates]
        rows.append([*cells, "-" if published is None else f"{published[0]}, {published[1]}"])
    heading = "policy | task | chance | from what is seen | from h | shuffled | paper: seen, h"
    return markdown(heading, rows)


def addressability(*results: Result) -> str:
    """List how often the choice follows the edited memory."""
    columns = {
        column: {row["name"]: row for row in finding["addressability"]["rows"]}
        for column, finding in _findings(*results).items()
        if finding["addressability"] is not None
    }
    rows = []
    for name in next(iter(columns.values())):
        cells = []
        for found in (rows_by_name[name] for rows_by_name in columns.values()):
            none = f" ({found['nothing']} none)" if found["nothing"] else ""
            cells.append(rate_cell(found["follows"]) + none)
        published = paper.ADDRESSABILITY.get(name)
        rows.append([name, *cells, "-" if published is None else f"{published:.0f}"])
    return markdown(" | ".join(["memory", *(", ".join(each) for each in columns), "paper"]), rows)


def prospectiveness(*results: Result) -> str:
    """List the step from which on the next choice can be read, and the accuracy at the decision."""
    rows = []
    for (policy, task), finding in _findings(*results).items():
        found = finding["prospectiveness"]
        now = next(point for point in found["working"] if point["step"] == 0)
        steps = [ready(found[name], found["threshold"]) for name in ("working", "traces")]
        rows.append([policy, task, *map(_relative, steps), rate_cell(now)])
    heading = "policy | task | ready, from h | ready, from traces | read from h at the decision"
    return markdown(heading, rows)


def _relative(step: int | None) -> str:
    if step is None:
        return "never"
    return f"{step:+d}" if step else "0"
