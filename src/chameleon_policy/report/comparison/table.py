"""The comparison as tables of words: one for every setting that rows were made with."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Self

from chameleon_policy.camo import TASKS, task_named
from chameleon_policy.report.comparison.cells import NOT_RUN, Cell, Column, Comparison, Line
from chameleon_policy.report.comparison.choices import choices_comparison
from chameleon_policy.report.comparison.paper import (
    NAMES,
    OTHERS,
    PAPER_TASKS,
    REFERENCE,
    SECTIONS,
    SHARED,
    TABLE_1,
)
from chameleon_policy.report.comparison.statistics import (
    Paired,
    Rates,
    Row,
    average_rates,
    episodes,
    paired,
    rates,
)
from chameleon_policy.report.evaluation_table import percent

FACTS = (Column("Method"), Column("Parameters, M"), Column("Seeds"))
BASELINES = SECTIONS["Matched imitation baselines"]
"""What must be able to act when it is told the answer, before anything can be said of its
memory.
"""


@dataclass(frozen=True)
class Setting:
    """What the methods of one table have in common."""

    preset: str
    observation: str
    image_size: int | None
    steps: int
    demonstrations: int
    trained_on: tuple[str, ...]
    """The tasks that one policy has learned; none: every task has a policy of its own."""
    told: bool

    @classmethod
    def of(cls, row: Row) -> Self:
        """The setting that a row belongs to."""
        together = tuple(row["trained_on"]) if len(row["trained_on"]) > 1 else ()
        return cls(
            row["preset"],
            row["observation"],
            row["image_size"],
            row["steps"],
            row["demonstrations"],
            together,
            row["told"],
        )

    def __str__(self) -> str:
        size = (
            f"two {self.image_size} x {self.image_size} views"
            if self.observation == "rgb"
            else "object slots"
        )
        learned = (
            f"one policy for {', '.join(self.trained_on)}"
            if self.trained_on
            else "a policy for each task"
        )
        told = ", told the answer" if self.told else ""
        each = f"{self.steps:,} optimizer steps, {self.demonstrations} demonstrations of each task"
        return f"{self.preset}, {size}, {learned}, {each}{told}"


def comparisons(rows: Iterable[Row]) -> list[Comparison]:
    """Tables for every setting, those without the answer first, and the paper's own at the end."""
    settings: dict[Setting, list[Row]] = {}
    for row in rows:
        settings.setdefault(Setting.of(row), []).append(row)
    ordered = sorted(settings.items(), key=lambda item: item[0].told)
    ours = (table for setting, found in ordered for table in _compare(setting, _longest(found)))
    return [*ours, paper_comparison()]


def _longest(rows: Iterable[Row]) -> list[Row]:
    """Of evaluations of one policy on one task, the one with the most episodes: it contains the
    others.
    """
    best: dict[tuple[str, str, int], Row] = {}
    for row in rows:
        key = (row["method"], row["task"], row["seed"])
        if key not in best or row["episodes"] > best[key]["episodes"]:
            best[key] = row
    return list(best.values())


def _compare(setting: Setting, rows: list[Row]) -> list[Comparison]:
    by_method: dict[str, list[Row]] = {}
    for row in rows:
        by_method.setdefault(row["method"], []).append(row)
    if setting.told:
        return [_told_comparison(setting, by_method, rows)]
    reference = by_method.get(REFERENCE, [])
    tasks = [*TASKS] if len(setting.trained_on) == len(TASKS) else _played(rows)
    line = _line if tasks == [*TASKS] else partial(_partial_line, tasks)
    columns = _columns() if tasks == [*TASKS] else _partial_columns(tasks)
    methods = _sections(by_method)
    sections = {
        title: [line(method, by_method.get(method, []), reference) for method in listed]
        for title, listed in methods.items()
    }
    scores = Comparison(str(setting), columns, sections, _notes(columns, rows))
    choices = (choices_comparison(str(setting), task, methods, by_method) for task in tasks)
    return [scores, *(table for table in choices if table is not None)]


def _told_comparison(
    setting: Setting, by_method: Mapping[str, list[Row]], rows: list[Row]
) -> Comparison:
    """Only what was played: nobody asks whether a policy that remembers can act without a
    memory.
    """
    tasks = _played(rows)
    columns = [*FACTS, *(Column(task, name) for task in tasks for name in ("MSR", "SR"))]
    sections: dict[str, list[Line]] = {}
    for title, methods in _sections(by_method).items():
        expected = [method for method in methods if method in by_method or method in BASELINES]
        if expected:
            sections[title] = [
                _told_line(method, by_method.get(method, []), tasks) for method in expected
            ]
    return Comparison(str(setting), tuple(columns), sections, _notes(columns, rows))


def _sections(found: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The paper's order; a method that has none comes last."""
    known = {method for methods in SECTIONS.values() for method in methods}
    others = tuple(method for method in found if method not in known)
    return {**SECTIONS, OTHERS: others} if others else dict(SECTIONS)


def _columns() -> tuple[Column, ...]:
    columns = list(FACTS)
    columns += [
        Column(task, name) for task in TASKS for name in (f"DSR (chance {_chance(task)})", "SR")
    ]
    columns += [
        Column(group, name) for group in ("Average", "Paper") for name in ("DSR", "MSR", "SR")
    ]
    columns += [Column("Against Chameleon", name) for name in ("SR, points", "p")]
    return tuple(columns)


def _partial_columns(tasks: Sequence[str]) -> tuple[Column, ...]:
    """Where nobody has played some of the tasks there is no average, and nothing of the paper's to
    compare one with.
    """
    columns = list(FACTS)
    columns += [
        Column(task, name)
        for task in tasks
        for name in (f"DSR (chance {_chance(task)})", "MSR", "SR")
    ]
    return (*columns, *(Column("Against Chameleon", name) for name in ("SR, points", "p")))


def _played(rows: Sequence[Row]) -> list[str]:
    return [task for task in TASKS if any(row["task"] == task for row in rows)]


def _chance(task: str) -> str:
    return str(Fraction(task_named(task)().chance).limit_denominator(1000))


def _line(method: str, rows: list[Row], reference: list[Row]) -> Line:
    by_task = _by_task(rows)
    cells = _facts(method, rows)
    for task in TASKS:
        cells += (
            [Cell.of(by_task[task].dsr), Cell.of(by_task[task].sr)]
            if task in by_task
            else [Cell(NOT_RUN)] * 2
        )
    cells += (
        _averages(by_task, ("dsr", "msr", "sr"))
        + _published(method)
        + _against(method, rows, reference)
    )
    return Line(tuple(cells), emphasised=method == REFERENCE)


def _partial_line(tasks: Sequence[str], method: str, rows: list[Row], reference: list[Row]) -> Line:
    by_task = _by_task(rows)
    cells = _facts(method, rows)
    for task in tasks:
        found = by_task.get(task)
        cells += [
            Cell.of(getattr(found, name)) if found else Cell(NOT_RUN)
            for name in ("dsr", "msr", "sr")
        ]
    return Line((*cells, *_against(method, rows, reference)), emphasised=method == REFERENCE)


def _told_line(method: str, rows: list[Row], tasks: Sequence[str]) -> Line:
    by_task = _by_task(rows)
    cells = _facts(method, rows)
    for task in tasks:
        cells += (
            [Cell.of(by_task[task].msr), Cell.of(by_task[task].sr)]
            if task in by_task
            else [Cell(NOT_RUN)] * 2
        )
    return Line(tuple(cells), emphasised=method == REFERENCE)


def _by_task(rows: Iterable[Row]) -> dict[str, Rates]:
    """Rates of each task, over the episodes of all trainings."""
    outcomes: dict[str, str] = {}
    for row in rows:
        outcomes[row["task"]] = outcomes.get(row["task"], "") + row["outcomes"]
    return {task: rates(each) for task, each in outcomes.items()}


def _facts(method: str, rows: Sequence[Row]) -> list[Cell]:
    """Name, parameters and number of trainings."""
    if not rows:
        return [Cell(NAMES.get(method, method)), Cell(NOT_RUN), Cell(NOT_RUN)]
    sizes = sorted({f"{row['parameters'] / 1e6:.1f}" for row in rows}, key=float)
    counts = sorted(
        {
            len({row["seed"] for row in rows if row["task"] == task})
            for task in {row["task"] for row in rows}
        }
    )
    return [Cell(NAMES.get(method, method)), Cell(_span(sizes)), Cell(_span(counts))]


def _span(values: Sequence[object]) -> str:
    return f"{values[0]}" if len(values) == 1 else f"{values[0]} to {values[-1]}"


def _averages(by_task: Mapping[str, Rates], names: Sequence[str]) -> list[Cell]:
    """Over all tasks; an average over some of them would be of something else."""
    if not by_task.keys() >= TASKS.keys():
        return [Cell(NOT_RUN)] * len(names)
    mean = average_rates(by_task[task] for task in TASKS)
    return [Cell.of(getattr(mean, name)) for name in names]


def _published(method: str) -> list[Cell]:
    if method not in TABLE_1:
        return [Cell("not in it")] * 3
    row, mark = TABLE_1[method], "*" if method in SHARED else ""
    return [Cell(f"{value:.1f}{mark}") for value in (row.dsr, row.msr, row.sr)]


def _against(method: str, rows: list[Row], reference: list[Row]) -> list[Cell]:
    if method == REFERENCE:
        return [Cell("reference")] * 2
    if not rows:
        return [Cell(NOT_RUN)] * 2
    both = paired(episodes(reference), episodes(rows))
    if both is None:
        return [Cell("no pair")] * 2
    # halves go away from zero
    points = int(math.copysign(percent(abs(both.difference)), both.difference))
    return [Cell(f"{points:+d}", f"({both.episodes} pairs)"), Cell(_p(both))]


def _p(both: Paired) -> str:
    return "< 0.001" if both.p < 0.001 else f"{both.p:.3f}"


def _notes(columns: Sequence[Column], rows: Sequence[Row]) -> tuple[str, ...]:
    """What the columns that are there mean."""
    groups = {column.group for column in columns}
    played = _span(sorted({row["episodes"] for row in rows}))
    notes = [
        f"In per cent. {played} held-out episodes of each task and training; the episodes of several trainings are pooled.",
        "MSR: the manipulation counts, whatever was chosen. DSR: of those, the choice is right (- where none counts). "
        "SR: both.",
        "In brackets 95 % intervals over episodes, not over trainings: Wilson's for a task, MOVER's for an average.",
    ]
    if "Paper" in groups:
        notes.append(
            "Paper: the averages of its Table 1. *: it has one Diffusion Policy, which stands beside both."
        )
    if "Against Chameleon" in groups:
        notes.append(
            "Against Chameleon: difference in SR and two-sided exact McNemar p over the episodes that both have played "
            "(same task, same seed of training, same evaluation seed). p is about these trainings: other seeds of training "
            "may differ by more than episodes do. It is not corrected for the number of methods."
        )
    else:
        notes.append("Every policy sees the answer: what it fails at here is not its memory.")
    return tuple(notes)


def paper_comparison() -> Comparison:
    """Table 1 of the paper, task by task."""
    columns = [
        Column("Method"),
        *(Column(task, name) for task in PAPER_TASKS for name in ("DSR", "SR")),
    ]
    columns += [Column("Average", name) for name in ("DSR", "MSR", "SR")]
    sections: dict[str, list[Line]] = {}
    for title, methods in SECTIONS.items():
        published = {
            TABLE_1[method].name: (method, TABLE_1[method])
            for method in methods
            if method in TABLE_1
        }
        for name, (method, row) in published.items():
            numbers = [*(value for pair in row.tasks for value in pair), row.dsr, row.msr, row.sr]
            cells = (Cell(name), *(Cell(f"{number:.1f}", share=number / 100) for number in numbers))
            sections.setdefault(title, []).append(Line(cells, emphasised=method == REFERENCE))
    return Comparison(
        "Table 1 of the paper", tuple(columns), sections, ("In per cent, as it is printed there.",)
    )
