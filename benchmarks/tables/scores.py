"""Tables of scores: the shipped policy, the comparison of methods, delays, loops, LeRobot."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean
from typing import Any

from benchmarks.tables.layout import Result, Rows, markdown, rate_cell, rate_cells
from chameleon_policy.rates import percent
from chameleon_policy.report.comparison.methods import AGAINST, comparisons
from chameleon_policy.report.paper import NAMES, PAPER_TASKS, TABLE_1

RATES = ("msr", "dsr", "sr")
SCORES = "MSR % [95 %] | DSR % [95 %] | SR % [95 %]"
REMEMBER = tuple(
    NAMES[method]
    for method in (
        "transformer-64",
        "lstm",
        "chameleon",
        "similarity",
        "vanilla-mamba",
        "constant-index",
        "undirected",
        "no-jepa",
        "brief",
    )
)
"""Methods in the table of single choices: those that remember."""


def tracks(result: Result) -> list[Result]:
    """Return the scores of the shipped policy, then those of the other training."""
    return [result, *result["tracks"].values()]


def mean(track: Result, name: str) -> float:
    """Average a rate over the tasks of a track."""
    return fmean(scores[name]["value"] for scores in track["tasks"].values())


def camo_small(result: Result) -> str:
    """Compare the shipped policy with the paper, by task."""
    paper = TABLE_1["chameleon"]
    rows: Rows = []
    for task, scores in result["tasks"].items():
        dsr, sr = paper.tasks[PAPER_TASKS.index(task)]
        rates = [str(percent(scores[name]["value"])) for name in ("msr", "dsr")]
        rows.append([task, *rates, rate_cell(scores["sr"]), f"{dsr}/{sr}"])
    means = [f"{100 * mean(result, name):.1f}" for name in RATES]
    rows.append(["mean", *means, f"{paper.dsr}/{paper.sr}"])
    return markdown("task | MSR % | DSR % | SR % [95 %] | paper DSR/SR", rows)


def camo_chameleon(result: Result) -> str:
    """List the scores of each task and track, their means, and the paper's."""
    rows: Rows = []
    for track in tracks(result):
        demonstrations = str(track["demonstrations"])
        for task, scores in track["tasks"].items():
            rows.append([task, demonstrations, *rate_cells(scores)])
        means = [f"**{100 * mean(track, name):.1f}**" for name in RATES]
        rows.append(["**mean**", demonstrations, *means])
    paper = TABLE_1["chameleon"]
    published = [str(value) for value in (paper.msr, paper.dsr, paper.sr)]
    rows.append(["the paper, a real robot, mean of three", "120", *published])
    return markdown(f"task | demonstrations | {SCORES}", rows)


def swaps(result: Result) -> str:
    """List DSR of the shell game and the wrong cups by the number of swaps, for each track."""
    rows: Rows = []
    for track in tracks(result):
        shell = track["tasks"]["shell-game"]
        failed = sum(
            rollout["reason"] != "success"
            for task in track["tasks"].values()
            for rollout in task["rollouts"]
        )
        for count, scores in shell["by_difficulty"]["swaps"].items():
            wrong = sum(
                rollout["reason"] == "wrong choice" and str(rollout["swaps"]) == count
                for rollout in shell["rollouts"]
            )
            cells = [str(track["demonstrations"]), count, rate_cell(scores["dsr"])]
            rows.append([*cells, f"{wrong} of {failed}"])
    heading = "demonstrations | swaps | DSR % [95 %] | wrong cups, of all failures in three tasks"
    return markdown(heading, rows)


def delays(points: Result, longer: Result) -> str:
    """List DSR and SR of the shell game against the wait and the number of swaps."""
    rows: Rows = []
    trained_on = points["trained_on"]
    for dial, values in (
        ("retention_steps", {**points["retention_steps"], **longer["retention_steps"]}),
        ("swaps", points["swaps"]),
    ):
        low, high = trained_on[dial]
        for value, scores in values.items():
            inside = "yes" if low <= int(value) <= high else "no"
            rows.append([dial.replace("_", " "), value, inside, *rate_cells(scores)])
    return markdown(f"dial | value | trained on | {SCORES}", rows)


def demo(result: Result) -> str:
    """Compare Chameleon with its memoryless twin after `make demo`."""
    rows: Rows = []
    for method, name in (("chameleon", "Chameleon"), ("no-memory", "its memoryless twin")):
        training = result[method]["training"]
        spent = f"{training['step']} steps, {training['seconds'] / 60:.1f} min"
        rows.append([name, spent, *rate_cells(result[method])])
    return markdown(f"policy | training | {SCORES}", rows)


def images(result: Result) -> str:
    """List the scores of two policies trained on clean-plate from pictures."""
    rows: Rows = []
    for name in ("small", "paper"):
        steps = f"{result[name]['training']['last_logged_step']:,} steps"
        rows.append([name, steps, *rate_cells(result[name])])
    return markdown(f"policy | training | {SCORES}", rows)


def experts(result: Result) -> str:
    """List the success of the scripted experts."""
    rows: Rows = []
    for task, row in result.items():
        rate, steps = row["sr"], row["control_steps"]
        success = f"{rate['value']:.1%} [{rate['low']:.1%}, {rate['high']:.1%}]"
        length = f"{steps['shortest']} to {steps['longest']}"
        rows.append([task, str(rate["count"]), success, length])
    return markdown("task | episodes | success [95 %] | control steps", rows)


def _comparison(bench: Iterable[Result]) -> Iterable[tuple[dict[str, Any], bool]]:
    """Yield the cells of every method by column, and whether the method is Chameleon."""
    table = comparisons(bench)[0]
    for lines in table.sections.values():
        for line in lines:
            yield dict(zip(map(str, table.headings), line.cells, strict=True)), line.emphasised


def methods(bench: list[Result]) -> str:
    """List every method's mean scores without intervals, next to the paper's."""
    rows: Rows = []
    for cells, emphasised in _comparison(bench):
        name = f"**{cells['Method']}**" if emphasised else str(cells["Method"])
        ours = [cells[f"Average {rate}"].value for rate in ("DSR", "MSR", "SR")]
        paper = [cells[f"Paper {rate}"].value for rate in ("DSR", "MSR", "SR")]
        rows.append([name, *ours, "-" if paper[0] == "not in it" else "/".join(paper)])
    return markdown("method | DSR % | MSR % | SR % | paper DSR/MSR/SR", rows)


def comparison(bench: list[Result]) -> str:
    """List every method's mean scores with intervals, and the test against Chameleon."""
    rows: Rows = []
    for cells, emphasised in _comparison(bench):
        paper = dict.fromkeys(cells[f"Paper {rate}"].value for rate in ("DSR", "MSR", "SR"))
        against = dict.fromkeys(cells[f"Against Chameleon {name}"].value for name in AGAINST)
        row = [
            f"**{cells['Method']}**" if emphasised else str(cells["Method"]),
            *(str(cells[f"Average {rate}"]) for rate in ("DSR", "MSR", "SR")),
            "-" if list(paper) == ["not in it"] else ", ".join(paper),
            ", ".join(against),
        ]
        rows.append(row)
    against = f"SR against Chameleon: {', '.join(AGAINST).removeprefix('SR, ')}"
    heading = f"method | DSR % | MSR % | SR % | paper: DSR, MSR, SR | {against}"
    return markdown(heading, rows)


def choices(bench: list[Result]) -> str:
    """List, choice by choice, how the methods that remember do in seasonings."""
    table = comparisons(bench)[1]
    rows = [
        [str(cell) for cell in line.cells]
        for lines in table.sections.values()
        for line in lines
        if line.cells[0].value in REMEMBER
    ]
    heading = "first | second, after it | third, after both | wrong episodes: only the order"
    return markdown(f"method | {heading}", rows)


def lerobot(result: Result) -> str:
    """Compare two evaluations of the same checkpoints on the same episodes."""
    rows = [
        [
            row["policy"],
            row["lerobot"],
            row["task"],
            str(row["episodes"]),
            str(percent(row["lerobot_sr"])),
            rate_cell(row["own_sr"]),
        ]
        for row in result["rows"]
    ]
    heading = "policy | LeRobot | task | episodes | `lerobot-eval` | `chameleon eval` [95 %]"
    return markdown(heading, rows)


def robot_loop(result: Result) -> str:
    """Compare the robot loop with an evaluation in one process."""
    rows: Rows = []
    for rate, tasks in result["rates"].items():
        for task in PAPER_TASKS:
            scores, loop = tasks[task], tasks[task]["loop"]
            delay = loop["end_to_end_ms"]
            cells = [
                f"{rate} Hz",
                task,
                rate_cell(result["in_process"][task]["sr"]),
                rate_cell(scores["sr"]),
                f"{loop['ticks']:,}",
                f"{loop['missed_memory']}, {loop['missed_periods']}",
                f"{delay['p50']:.0f}, {delay['p99']:.0f} ms",
            ]
            rows.append(cells)
    heading = "rate | task | SR in one process [95 %] | SR in the loop [95 %] | ticks"
    return markdown(f"{heading} | not in the memory, missed | delay p50, p99", rows)


def busy_loop(*results: Result) -> str:
    """List the scores of the robot loop on a busy machine."""
    rows = [
        [
            f"{result['rate']:g} Hz",
            result["scores"]["task"],
            *rate_cells(result["scores"]),
            f"{result['loop']['end_to_end_ms']['p99']:.0f} ms",
        ]
        for result in results
    ]
    return markdown(f"rate | task | {SCORES} | delay p99", rows)


def trials(result: Result) -> str:
    """List short trainings with the last probe of their memory and their scores."""
    rows: Rows = []
    for row in result.values():
        probes = [
            f"{100 * metrics['held_out_probe']:.0f}"
            for metrics in row["looks"]
            if "held_out_probe" in metrics
        ]
        rates = [f"{100 * row[name]['value']:.0f}" if name in row else "-" for name in RATES]
        policy = f"{row['preset']}, {row['observations']}"
        probe = probes[-1] if probes else "-"
        rows.append([policy, row["task"], row["what"], f"{row['steps']:,}", probe, *rates])
    return markdown("policy | task | what | steps | probe % | MSR % | DSR % | SR %", rows)
