"""The comparison of methods: a table for each setting of the rows, and the paper's table."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Self

from chameleon_policy.rates import percent
from chameleon_policy.report.comparison.cells import NOT_RUN, Cell, Comparison, Heading, Line
from chameleon_policy.report.comparison.choices import choices_comparison
from chameleon_policy.report.comparison.outcomes import (
    Paired,
    Rates,
    Row,
    average_rates,
    episodes,
    paired,
    rates,
    seed_interval,
)
from chameleon_policy.report.paper import (
    NAMES,
    OTHERS,
    PAPER_TASKS,
    REFERENCE,
    SECTIONS,
    SHARED,
    TABLE_1,
)
from chameleon_policy.suite import DEFAULT_SUITE, Suite, suite_named

PAPER_TITLE = "Table 1 of the paper"
FACTS = (Heading("Method"), Heading("Parameters, M"), Heading("Seeds"))
AVERAGED = ("dsr", "msr", "sr")
AGAINST = ("SR, points", "95 % over seeds", "p")
BASELINES = SECTIONS["Matched imitation baselines"]
"""Methods that must be able to act when the answer is given, before anything can be said of their
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
    """The tasks that one policy has learned; empty if every task has a policy of its own."""
    told: bool
    """Whether the policies are given the answer."""

    @classmethod
    def of(cls, row: Row) -> Self:
        """Return the setting of a row."""
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


@dataclass(frozen=True)
class Columns:
    """The columns of a table."""

    chances: dict[str, float | None]
    """Task -> DSR of a guess; None for a task without a decision to remember."""
    scores: tuple[str, ...]
    """Names of `Rates` to show of each task with a decision; the others have an SR only."""
    averaged_tasks: tuple[str, ...]
    """Tasks of the averages: the paper's, or all of another suite; empty for none."""
    against: bool
    """Whether methods are compared with the reference, episode by episode."""

    @classmethod
    def of(cls, suite: Suite, setting: Setting, rows: Iterable[Row]) -> Self:
        """Return the columns for the rows of a setting: the tasks that were learned or played.

        Unless these include the paper's (in another suite: all) there are no averages.
        """
        seen = {row["task"] for row in rows}.union(() if setting.told else setting.trained_on)
        tasks = tuple(task for task in suite.tasks if task in seen)
        chances = {task: suite.task(task).summarise([]).chance for task in tasks}
        if setting.told:
            return cls(chances, ("msr", "sr"), averaged_tasks=(), against=False)
        wanted = PAPER_TASKS if _is_papers(suite) else suite.tasks
        if seen.issuperset(wanted):
            return cls(chances, ("dsr", "sr"), averaged_tasks=wanted, against=True)
        return cls(chances, ("dsr", "msr", "sr"), averaged_tasks=(), against=True)

    @property
    def averaged(self) -> tuple[str, ...]:
        """Names of `Rates` to average: those that all these tasks have."""
        if not self.averaged_tasks:
            return ()
        without = any(self.chances[task] is None for task in self.averaged_tasks)
        return ("sr",) if without else AVERAGED

    @property
    def paper(self) -> bool:
        """Whether the paper has averages over the same tasks."""
        return self.averaged_tasks == PAPER_TASKS

    def headings(self) -> tuple[Heading, ...]:
        """Return the headings of all columns."""
        found = list(FACTS)
        for task, chance in self.chances.items():
            labels = {name: name.upper() for name in self.scores_of(task)}
            if chance is not None and "dsr" in labels:
                labels["dsr"] = f"DSR (chance {Fraction(chance).limit_denominator(1000)})"
            found += [Heading(task, label) for label in labels.values()]
        found += [Heading("Average", name.upper()) for name in self.averaged]
        if self.paper:
            found += [Heading("Paper", name.upper()) for name in AVERAGED]
        if self.against:
            found += [Heading("Against Chameleon", name) for name in AGAINST]
        return tuple(found)

    def scores_of(self, task: str) -> tuple[str, ...]:
        """Return the names of `Rates` to show of a task."""
        return ("sr",) if self.chances[task] is None else self.scores

    def line(self, method: str, rows: list[Row], reference: list[Row]) -> Line:
        """Return the line of a method; `reference` are the rows that it is compared with."""
        by_task = _by_task(rows)
        cells = _facts(method, rows)
        for task in self.chances:
            found = by_task.get(task)
            cells += [
                Cell.of(getattr(found, name)) if found else Cell(NOT_RUN)
                for name in self.scores_of(task)
            ]
        cells += self._averages(by_task)
        if self.paper:
            cells += _published(method)
        if self.against:
            cells += _against(method, rows, reference)
        return Line(tuple(cells), emphasised=method == REFERENCE)

    def _averages(self, by_task: Mapping[str, Rates]) -> list[Cell]:
        if not self.averaged_tasks or not by_task.keys() >= set(self.averaged_tasks):
            return [Cell(NOT_RUN)] * len(self.averaged)
        mean = average_rates(by_task[task] for task in self.averaged_tasks)
        return [Cell.of(getattr(mean, name)) for name in self.averaged]


def comparisons(rows: Iterable[Row], suite: str = DEFAULT_SUITE) -> list[Comparison]:
    """Return the tables of every setting and, for the tasks of the paper, its own as the last one.

    Settings in which the answer is given come after the others.
    """
    known = suite_named(suite)
    settings: dict[Setting, list[Row]] = {}
    for row in rows:
        settings.setdefault(Setting.of(row), []).append(row)
    ordered = sorted(settings.items(), key=lambda item: item[0].told)
    ours = [
        table for setting, found in ordered for table in _compare(known, setting, _longest(found))
    ]
    return [*ours, paper_comparison()] if _is_papers(known) else ours


def _is_papers(suite: Suite) -> bool:
    return set(PAPER_TASKS) <= set(suite.tasks)


def _longest(rows: Iterable[Row]) -> list[Row]:
    """Keep the longest of several evaluations of one policy on one task: it contains the others."""
    best: dict[tuple[str, str, int], Row] = {}
    for row in rows:
        key = (row["method"], row["task"], row["seed"])
        if key not in best or row["episodes"] > best[key]["episodes"]:
            best[key] = row
    return list(best.values())


def _compare(suite: Suite, setting: Setting, rows: list[Row]) -> list[Comparison]:
    by_method: dict[str, list[Row]] = {}
    for row in rows:
        by_method.setdefault(row["method"], []).append(row)
    columns, methods = Columns.of(suite, setting, rows), _sections(by_method)
    if setting.told:  # a policy with a memory need not be tried without one
        methods = {
            title: tuple(each for each in listed if each in by_method or each in BASELINES)
            for title, listed in methods.items()
        }
    reference = by_method.get(REFERENCE, [])
    sections = {
        title: [columns.line(method, by_method.get(method, []), reference) for method in listed]
        for title, listed in methods.items()
        if listed
    }
    scores = Comparison(str(setting), columns.headings(), sections, _notes(columns, rows))
    if setting.told:
        return [scores]
    choices = (
        choices_comparison(str(setting), task, methods, by_method) for task in columns.chances
    )
    return [scores, *(table for table in choices if table is not None)]


def _sections(found: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return the methods in the paper's order; those that it does not have come last."""
    known = {method for methods in SECTIONS.values() for method in methods}
    others = tuple(method for method in found if method not in known)
    return {**SECTIONS, OTHERS: others} if others else dict(SECTIONS)


def _by_task(rows: Iterable[Row]) -> dict[str, Rates]:
    """Return the rates of each task, over the episodes of all training runs."""
    outcomes: dict[str, str] = {}
    for row in rows:
        outcomes[row["task"]] = outcomes.get(row["task"], "") + row["outcomes"]
    return {task: rates(each) for task, each in outcomes.items()}


def _facts(method: str, rows: Sequence[Row]) -> list[Cell]:
    """Return the name, the parameters and the number of training runs."""
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


def _published(method: str) -> list[Cell]:
    if method not in TABLE_1:
        return [Cell("not in it")] * len(AVERAGED)
    row, mark = TABLE_1[method], "*" if method in SHARED else ""
    return [Cell(f"{getattr(row, name):.1f}{mark}") for name in AVERAGED]


def _against(method: str, rows: list[Row], reference: list[Row]) -> list[Cell]:
    if method == REFERENCE:
        return [Cell("reference")] * len(AGAINST)
    if not rows:
        return [Cell(NOT_RUN)] * len(AGAINST)
    ours, theirs = episodes(reference), episodes(rows)
    both, spread = paired(ours, theirs), seed_interval(ours, theirs)
    if both is None:
        return [Cell("no pair")] * len(AGAINST)
    seeds = "one seed" if spread is None else " to ".join(map(_points, spread))
    points = Cell(_points(both.difference), f"({both.episodes} pairs)")
    return [points, Cell(seeds), Cell(_p(both))]


def _points(difference: float) -> str:
    """Format a difference in per cent points; halves are rounded away from zero."""
    return f"{int(math.copysign(percent(abs(difference)), difference)):+d}"


def _p(both: Paired) -> str:
    return "< 0.001" if both.p < 0.001 else f"{both.p:.3f}"


def _notes(columns: Columns, rows: Sequence[Row]) -> tuple[str, ...]:
    """Explain the columns."""
    played = _span(sorted({row["episodes"] for row in rows}))
    notes = [
        f"In per cent. {played} held-out episodes of each task and training; the episodes of "
        "several trainings are pooled."
    ]
    if any(chance is not None for chance in columns.chances.values()):
        notes.append(
            "MSR: the manipulation counts, whatever was chosen. DSR: of those, the choice is right "
            "(- where none counts). SR: both."
        )
    if columns.paper and len(columns.chances) > len(PAPER_TASKS):
        notes.append("Averages are over the paper's tasks.")
    notes.append(
        "In brackets 95 % intervals over episodes, not over trainings: Wilson's for a task, "
        "MOVER's for an average."
    )
    if columns.paper:
        notes.append(
            "Paper: the averages of its Table 1. *: it has one Diffusion Policy and one row w/o "
            "control index; each stands beside two methods."
        )
    if columns.against:
        notes.append(
            "Against Chameleon: difference in SR over the episodes that both have played (same "
            "task, same seed of training, same evaluation seed), its 95 % interval from a "
            "bootstrap over seeds of training and episodes, and the two-sided exact McNemar p over "
            "episodes. p is about these trainings alone: other seeds may differ by more than "
            "episodes do. It is not corrected for the number of methods."
        )
    else:
        notes.append("Every policy sees the answer: what it fails at here is not its memory.")
    return tuple(notes)


def paper_comparison() -> Comparison:
    """Return Table 1 of the paper, task by task."""
    headings = (
        Heading("Method"),
        *(Heading(task, name) for task in PAPER_TASKS for name in ("DSR", "SR")),
        *(Heading("Average", name.upper()) for name in AVERAGED),
    )
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
    return Comparison(PAPER_TITLE, headings, sections, ("In per cent, as it is printed there.",))
