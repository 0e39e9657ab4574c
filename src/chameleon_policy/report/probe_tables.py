"""The findings of probes next to the paper's numbers, as tables for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from chameleon_policy.probes.prospectiveness import lead, ready
from chameleon_policy.rates import Rate, interval
from chameleon_policy.report import paper

Finding = Mapping[str, Any]


def tables(findings: Sequence[Finding]) -> list[Table]:
    """Return a table for each property; that of edited memories has a row for each intervention."""
    shown = [_separability(findings)]
    edited = [finding for finding in findings if finding["addressability"] is not None]
    if edited:
        shown.append(_addressability(edited))
    return [*shown, _prospectiveness(findings)]


def leads(findings: Sequence[Finding]) -> dict[tuple[str, str], int | None]:
    """Return how many steps earlier the next choice can be read from the first run's h.

    The keys are the other runs and tasks.
    """
    first = {
        each["task"]: ready_at(each)["working"]
        for each in findings
        if each["run"] == findings[0]["run"]
    }
    return {
        (each["run"], each["task"]): lead(first[each["task"]], ready_at(each)["working"])
        for each in findings
        if each["run"] != findings[0]["run"] and each["task"] in first
    }


def ready_at(finding: Finding) -> dict[str, int | None]:
    """Return from which step, relative to the decision, h and traces tell the next choice."""
    found = finding["prospectiveness"]
    return {name: ready(found[name], found["threshold"]) for name in ("working", "traces")}


def share(rate: Mapping[str, Any] | None) -> str:
    """Return a rate with its interval as text; a dash where there is none."""
    return "-" if rate is None else interval(Rate.from_dict(rate))


def _new(title: str, *columns: str) -> Table:
    table = Table(title=title)
    for column in columns:
        table.add_column(column, justify="left" if column in ("run", "task", "memory") else "right")
    return table


def _separability(findings: Sequence[Finding]) -> Table:
    table = _new(
        "Separability: z read by a linear probe, %",
        "run",
        "task",
        "chance",
        "current tokens",
        "memory h",
        "shuffled",
        "paper: current",
        "paper: memory",
    )
    for finding in findings:
        found = finding["separability"]
        published = paper.SEPARABILITY.get(finding["task"])
        table.add_row(
            finding["run"],
            finding["task"],
            f"{100 * found['chance']:.1f}",
            share(found["current"]),
            share(found["memory"]),
            share(found["shuffled"]),
            *(("-", "-") if published is None else map(str, published)),
        )
    return table


def _addressability(findings: Sequence[Finding]) -> Table:
    table = _new(
        "Addressability: the choice follows the edited memory, %",
        "memory",
        *(f"{finding['run']}, {finding['task']}" for finding in findings),
        "paper",
    )
    names = [row["name"] for row in findings[0]["addressability"]["rows"]]
    for name in names:
        cells = []
        for finding in findings:
            rows = {row["name"]: row for row in finding["addressability"]["rows"]}
            cells.append(share(rows[name]["follows"]) if name in rows else "-")
        published = paper.ADDRESSABILITY.get(name)
        table.add_row(name, *cells, "-" if published is None else f"{published:.0f}")
    return table


def _prospectiveness(findings: Sequence[Finding]) -> Table:
    threshold = findings[0]["prospectiveness"]["threshold"]
    table = _new(
        f"Prospectiveness: the step from which on the next choice is read in {threshold:.0%}, "
        "decision at 0",
        "run",
        "task",
        "from h",
        "from traces",
        "at the decision, %",
        "first run earlier by",
    )
    table.caption = (
        "The paper: Chameleon is earlier than without Control-JEPA by "
        f"{' and '.join(map(str, paper.LEADS))} steps."
    )
    earlier = leads(findings)
    for finding in findings:
        found = finding["prospectiveness"]
        now = next(point for point in found["working"] if point["step"] == 0)
        rate = {name: now[name] for name in ("value", "low", "high", "count")}
        ahead = earlier.get((finding["run"], finding["task"]))
        table.add_row(
            finding["run"],
            finding["task"],
            *map(_step, ready_at(finding).values()),
            share(rate),
            "" if finding["run"] == findings[0]["run"] else "-" if ahead is None else f"{ahead:+d}",
        )
    return table


def _step(step: int | None) -> str:
    return "never" if step is None else f"{step:+d}" if step else "0"
