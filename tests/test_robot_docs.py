"""What documents say of LeRobot, the server, the robot loop and exports is what the result files
have.
"""

from __future__ import annotations

import re

import pytest

from benchmarks.serving import CLIENTS
from chameleon_policy.baselines import METHODS
from chameleon_policy.camo import TASKS
from chameleon_policy.rates import Rate, interval, percent
from documents import README, ROOT, result, table_below

MACHINES = {"serving-cpu.json": "2 CPU cores", "serving-h200.json": "H200"}


def lerobot_rows() -> list[list[str]]:
    rows = result("lerobot.json")["rows"]
    return [
        [
            row["policy"],
            row["lerobot"],
            row["task"],
            str(row["episodes"]),
            str(percent(row["lerobot_sr"])),
            interval(Rate.from_dict(row["own_sr"])),
        ]
        for row in rows
    ]


def loop_rows() -> list[list[str]]:
    measured = result("robot-loop.json")
    rows = []
    for rate, tasks in measured["rates"].items():
        for task in TASKS:
            scores, loop = tasks[task], tasks[task]["loop"]
            delays = loop["end_to_end_ms"]
            rows.append(
                [
                    f"{rate} Hz",
                    task,
                    interval(Rate.from_dict(measured["in_process"][task]["sr"])),
                    interval(Rate.from_dict(scores["sr"])),
                    f"{loop['ticks']:,}",
                    f"{loop['missed_memory']}, {loop['missed_periods']}",
                    f"{delays['p50']:.0f}, {delays['p99']:.0f} ms",
                ]
            )
    return rows


def serving_rows() -> list[list[str]]:
    rows = []
    for file, machine in MACHINES.items():
        for policy, measured in result(file)["policies"].items():
            ticks = [f"{row['ticks_per_second']:.0f}" for row in measured["server"]]
            assert [row["clients"] for row in measured["server"]] == list(CLIENTS)
            rows.append(
                [machine, policy, f"{measured['in_process']['ticks_per_second']:.0f}", *ticks]
            )
    return rows


@pytest.mark.parametrize("document", ["README.md", "docs/lerobot.md"])
def test_lerobot_table(document: str) -> None:
    assert table_below("lerobot", (ROOT / document).read_text()) == lerobot_rows()


def test_what_is_said_of_the_rows() -> None:
    page, rows = (ROOT / "docs/lerobot.md").read_text(), result("lerobot.json")["rows"]
    first = rows[0]
    assert (
        f"Of the {first['episodes']} episodes of the first row, {first['both']} succeed in both evaluations, "
        in page
    )
    assert f"{first['only_lerobot']} only in LeRobot's and {first['only_own']} only in ours" in page
    pictures = next(row for row in rows if row["lerobot"] == "0.6.1")
    (seconds,) = re.findall(r"(\d+) s on an H200", pictures["training"])
    assert f"in\n{seconds} s;" in page


def test_both_evaluations_agree_as_far_as_noise_lets_them() -> None:
    """One rate lies within the interval of the other, for every row that the documents show."""
    for row in result("lerobot.json")["rows"]:
        theirs, ours = (
            Rate.of(sum(row["lerobot_successes"]), row["episodes"]),
            Rate.from_dict(row["own_sr"]),
        )
        assert _within(theirs.value, ours) or _within(ours.value, theirs), row["policy"]
        assert row["both"] + row["only_lerobot"] == sum(row["lerobot_successes"])
        assert row["both"] + row["only_own"] == sum(row["own_successes"])


def _within(value: float, rate: Rate) -> bool:
    return rate.low - 1e-9 <= value <= rate.high + 1e-9  # the last digits are rounded


@pytest.mark.parametrize("document", ["README.md", "docs/robot.md"])
def test_loop_table(document: str) -> None:
    assert table_below("robot-loop", (ROOT / document).read_text()) == loop_rows()


def test_the_loop_scores_like_an_evaluation_and_misses_nothing() -> None:
    measured = result("robot-loop.json")
    for tasks in measured["rates"].values():
        for task, row in tasks.items():
            alone = Rate.from_dict(measured["in_process"][task]["sr"])
            assert _within(row["sr"]["value"], alone), task
            assert row["loop"]["missed_memory"] == row["loop"]["missed_periods"] == 0


@pytest.mark.parametrize("document", ["README.md", "docs/robot.md"])
def test_what_is_said_of_a_busy_machine(document: str) -> None:
    busy = [result(f"robot-loop-busy{again}.json") for again in ("", "-again")]
    rates = " and ".join(str(percent(run["scores"]["sr"]["value"])) for run in busy)
    assert f"seasonings at 30 Hz fell to {rates} %" in (ROOT / document).read_text()
    assert all(
        round(run["loop"]["end_to_end_ms"]["p99"], -1) == 200 and run["rate"] == 30 for run in busy
    )
    assert all(run["scores"]["dsr"]["value"] > 0.95 for run in busy)


@pytest.mark.parametrize("document", ["README.md", "docs/serving.md"])
def test_serving_table(document: str) -> None:
    assert table_below("serving", (ROOT / document).read_text()) == serving_rows()


def test_what_is_said_of_lerobots_server() -> None:
    peer = result("serving-cpu.json")["lerobot"]
    shares = peer["share_reaching_the_policy_by_step"]
    text = (ROOT / "docs/serving.md").read_text()
    for step, share in shares.items():
        assert f"{percent(share)} % when joints move by {step}" in text
    assert (
        f"LeRobot {peer['version']}" in text
        and f"it adds {peer['overhead_ms']:.1f} ms to a call" in text
    )
    ours = result("serving-cpu.json")["policies"]["camo-small, 2 x 128 x 128"]["overhead_ms"]
    assert f"{ours:.1f} ms to an `observe`" in text


def test_export_tables() -> None:
    measured = result("exporting.json")
    text = (ROOT / "docs/export.md").read_text()
    rows = [
        [
            f"`{method}`" if method in METHODS else method,
            *(f"{row[name]:.1e}" for name in ("memory", "working", "actions")),
        ]
        for method, row in measured["errors"].items()
    ]
    assert table_below("export-errors", text) == rows
    assert set(measured["errors"]) == {*METHODS, "camo-small"}
    speed = [
        [
            threads,
            call,
            f"{row['eager']['ms']:.1f} ms",
            *(f"{row[name]['times_as_fast']:.2f}" for name in PROGRAMS),
        ]
        for threads, calls in measured["threads"].items()
        for call, row in calls.items()
    ]
    assert table_below("export-speed", text) == speed


PROGRAMS = ("FastControl", "torch.export", "ONNX Runtime")


def test_the_readme_names_what_there_is() -> None:
    for page in ("lerobot", "serving", "robot", "export"):
        assert re.search(rf"\(docs/{page}\.md\)", README), page
