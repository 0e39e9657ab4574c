"""A bench: its file, its schedule, and all of it in miniature."""

from __future__ import annotations

import itertools
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from bench_rows import ALL, row
from chameleon_policy.baselines import METHODS
from chameleon_policy.cli import main
from chameleon_policy.exit_codes import ALREADY_TRAINED, NO_ROOM
from chameleon_policy.experiments.bench import jobs
from chameleon_policy.experiments.bench.board import Board
from chameleon_policy.experiments.bench.jobs import Bench, BenchJob
from chameleon_policy.experiments.bench.processes import NoRoomError, Processes, failure, last_lines
from chameleon_policy.experiments.bench.rows import IDENTITY, Results
from chameleon_policy.experiments.bench.schedule import Schedule, is_trained, missing
from chameleon_policy.experiments.pipeline import Workspace
from command_line import plain

SMALL = Bench(
    suite="camo",
    methods=("chameleon", "no-memory"),
    tasks=("clean-plate", "shell-game"),
    steps=5,
    episodes=4,
)


# The results file.


def test_rows_are_found_again_by_their_settings(tmp_path: Path) -> None:
    file = Results(tmp_path / "deep" / "table.json")
    assert file.rows == [] and not file.holds(row())
    file.append(row(), "chameleon bench camo")
    again = Results(file.path)
    assert again.holds(row()) and again.rows == [row()]
    others = {
        "method": "no-memory",
        "task": "seasonings",
        "seed": 1,
        "preset": "nano",
        "observation": "state",
        "told": True,
        "image_size": 64,
        "demonstrations": 60,
        "steps": 8000,
        "trained_on": ["shell-game"],
        "episodes": 3,
    }
    assert others.keys() == set(IDENTITY)
    for name, value in others.items():
        assert not again.holds({**row(), name: value}), name
    document = json.loads(file.path.read_text())
    assert document["seeds"] == [10**9 + number for number in range(4)] and document["rows"] == [
        row()
    ]
    said = {"command", "seeds", "hardware", "software", "git_revision", "duration_s", "rows"}
    assert set(document) == said and document["command"] == "chameleon bench camo"


def test_an_interrupted_write_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = Results(tmp_path / "table.json")
    file.append(row(), "x")

    def fail(self: Path, text: str) -> int:
        self.open("w").write(text[:40])
        raise OSError("no space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(Path, "write_text", fail)
        with pytest.raises(OSError, match="no space"):
            file.append(row(seed=1), "x")
    assert Results(file.path).rows == [row()]
    file.append(row(seed=1), "x")
    assert [each["seed"] for each in Results(file.path).rows] == [0, 1]


def test_rows_outlive_a_file_that_is_moved_away(tmp_path: Path) -> None:
    results = Results(tmp_path / "table.json")
    results.append(row(), "chameleon bench camo")
    results.path.rename(tmp_path / "elsewhere.json")
    results.append(row("no-memory"), "chameleon bench camo")
    assert [each["method"] for each in results.rows] == ["chameleon", "no-memory"]


def test_two_benches_do_not_write_to_one_file(tmp_path: Path) -> None:
    one, other = Results(tmp_path / "table.json"), Results(tmp_path / "table.json")
    with (
        one.only_here(),
        pytest.raises(FileExistsError, match="another bench writes to"),
        other.only_here(),
    ):
        pass
    assert list(tmp_path.iterdir()) == []
    with Results(tmp_path / "table.json").only_here():
        pass


# The schedule, with stubs in place of trainings.


class Stub:
    """Stands in for processes: notes what is run, and fails where it is told to."""

    def __init__(
        self,
        failing: Sequence[str] = (),
        seconds: float = 0.0,
        status: int = 1,
        says: str = "boom",
        times: int = 99,
    ) -> None:
        self.failing, self.seconds, self.status, self.says, self.times = (
            failing,
            seconds,
            status,
            says,
            times,
        )
        self.commands: list[list[str]] = []
        self.together, self.most, self.stopped = 0, 0, threading.Event()
        self.running, self.beside = 0, list[int]()
        """How many run now, and how many others ran when each command began."""
        self._turn = threading.Lock()

    def run(self, command: Sequence[str], log: Path) -> int:
        words = list(command)[3:]
        with self._turn:
            self.commands.append(words)
            self.beside.append(self.running)
            self.running += 1
            self.together += words[0] == "train"
            self.most = max(self.most, self.together)
        self.stopped.wait(self.seconds)
        with self._turn:
            self.running -= 1
            self.together -= words[0] == "train"
        if (
            any(name in " ".join(words) for name in self.failing)
            and self.commands.count(words) <= self.times
        ):
            log.parent.mkdir(parents=True, exist_ok=True)
            with log.open("a") as file:
                file.write(f"a bar\n{self.says}\n")
            return self.status
        return 143 if self.stopped.is_set() else 0

    def stop(self) -> None:
        self.stopped.set()

    def names(self) -> list[str]:
        """train M, or eval M T, in order."""
        option = {"train": "--out", "eval": "--task"}
        place = [
            Path(words[words.index("--out") + 1] if words[0] == "train" else words[1]).name
            for words in self.commands
        ]
        tasks = [
            words[words.index(option[words[0]]) + 1] if words[0] == "eval" else ""
            for words in self.commands
        ]
        kinds = [words[0] for words in self.commands]
        return [" ".join(filter(None, each)) for each in zip(kinds, place, tasks, strict=True)]


def stub_row(job: BenchJob, task: str, out: Path, command: str, seconds: float) -> dict[str, Any]:
    return {**row(outcomes="sswf"), **job.identity(task)}


def schedule(
    folder: Path, stub: Stub, said: list[str] | None = None, side_by_side: int = 2
) -> tuple[Schedule, Results]:
    results = Results(folder / "table.json")
    console = Console(file=(folder / "console").open("w"), width=300)
    workspace = Workspace(out=folder / "runs", command="chameleon bench camo", console=console)
    board = Board(console, workspace.out)
    return Schedule(workspace, results, board, stub, side_by_side, stub_row), results


def test_every_method_is_trained_and_plays_every_task(tmp_path: Path) -> None:
    stub = Stub()
    work, results = schedule(tmp_path, stub)
    assert work.run(SMALL.jobs()) == []
    names = [f"{method}-5steps-seed0-clean-plate-shell-game" for method in SMALL.methods]
    expected = [f"train {name}" for name in names]
    expected += [f"eval {name} {task}" for name in names for task in SMALL.tasks]
    assert sorted(stub.names()) == sorted(expected)
    assert Counter((each["method"], each["task"]) for each in results.rows) == dict.fromkeys(
        itertools.product(SMALL.methods, SMALL.tasks), 1
    )
    assert (
        "training chameleon-5steps-seed0-clean-plate-shell-game begins"
        in (tmp_path / "console").read_text()
    )


def test_jobs_with_a_row_are_not_run_again(tmp_path: Path) -> None:
    first, second = SMALL.jobs()
    stub = Stub()
    work, results = schedule(tmp_path, stub)
    for task in first.tasks:
        results.append(stub_row(first, task, tmp_path, "", 0), "x")
    results.append(stub_row(second, "shell-game", tmp_path, "", 0), "x")
    assert [missing(job, results) for job in SMALL.jobs()] == [[], ["clean-plate"]]
    work.run([job for job in SMALL.jobs() if missing(job, results)])
    assert stub.names() == [f"train {second.name}", f"eval {second.name} clean-plate"]
    assert len(results.rows) == 4
    assert [missing(job, results) for job in SMALL.jobs()] == [[], []]


def test_one_failure_does_not_lose_the_others(tmp_path: Path) -> None:
    stub = Stub(
        failing=[
            "--method chameleon",
            "no-memory-5steps-seed0-clean-plate-shell-game --task clean-plate",
        ]
    )
    work, results = schedule(tmp_path, stub)
    failures = work.run(SMALL.jobs())
    assert sorted(failures) == [
        "no-memory-5steps-seed0-clean-plate-shell-game on clean-plate",
        "training chameleon-5steps-seed0-clean-plate-shell-game",
    ]
    assert [(each["method"], each["task"]) for each in results.rows] == [
        ("no-memory", "shell-game")
    ]
    said = (tmp_path / "console").read_text()
    assert "exit status 1" in said and "a bar / boom" in said


def test_an_unforeseen_error_does_not_stop_the_others(tmp_path: Path) -> None:
    work, results = schedule(tmp_path, Stub())

    def odd_row(job: BenchJob, task: str, *rest: Any) -> dict[str, Any]:
        if (job.method, task) == ("chameleon", "shell-game"):
            raise KeyError("held_out")
        return stub_row(job, task, *rest)

    work._make_row = odd_row
    assert work.run(SMALL.jobs()) == ["chameleon-5steps-seed0-clean-plate-shell-game on shell-game"]
    assert len(results.rows) == 3
    assert "KeyError: 'held_out'" in (tmp_path / "console").read_text()


def test_only_the_last_output_of_a_log_is_reported(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    log.write_text("chameleon: no such file\n")
    before = log.stat().st_size
    with log.open("a") as file:
        file.write("chameleon: another process is training\n")
    assert last_lines(log, before) == "chameleon: another process is training"
    assert "no such file" in last_lines(log)


def test_a_finished_training_is_no_failure(tmp_path: Path) -> None:
    stub = Stub(failing=["--recipe camo "], status=ALREADY_TRAINED)
    work, results = schedule(tmp_path, stub)
    assert work.run(SMALL.jobs()) == []
    assert len(results.rows) == 4


def test_processes_without_room_on_the_gpu_run_again_alone_at_the_end(
    tmp_path: Path,
) -> None:
    name = "{}-5steps-seed0-clean-plate-shell-game"
    crowded = [
        f"train {name.format('chameleon')}",
        f"train {name.format('lstm')}",
        f"eval {name.format('no-memory')} shell-game",
    ]
    failing = [
        "--method chameleon",
        "--method lstm",
        f"{name.format('no-memory')} --task shell-game",
    ]
    stub = Stub(failing=failing, status=NO_ROOM, times=1, seconds=0.05)
    work, results = schedule(tmp_path, stub, side_by_side=3)
    bench = Bench(
        suite="camo",
        methods=("chameleon", "lstm", "no-memory"),
        tasks=("clean-plate", "shell-game"),
        steps=5,
        episodes=4,
    )
    assert work.run(bench.jobs()) == []
    names = stub.names()
    expected = {f"train {name.format(method)}": 1 for method in bench.methods}
    expected |= {
        f"eval {name.format(method)} {task}": 1 for method in bench.methods for task in bench.tasks
    }
    assert Counter(names) == Counter([*expected, *crowded])
    again = {each: len(names) - 1 - names[::-1].index(each) for each in crowded}
    first_tries = [
        names.index(each)
        for each in (
            *crowded,
            f"train {name.format('no-memory')}",
            f"eval {name.format('no-memory')} clean-plate",
        )
    ]
    assert min(again.values()) > max(first_tries)
    assert [stub.beside[place] for place in again.values()] == [0, 0, 0] and max(stub.beside) > 0
    assert len(results.rows) == 6
    assert "no room on the GPU for training chameleon" in (tmp_path / "console").read_text()


def test_a_full_gpu_has_an_exit_status(tmp_path: Path) -> None:
    assert isinstance(failure(NO_ROOM, tmp_path / "run.log", 0), NoRoomError)
    assert not isinstance(failure(1, tmp_path / "run.log", 0), NoRoomError)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 306.00 MiB."),
        RuntimeError("CUDA error: out of memory\nadvice\n"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"),
    ],
)
def test_all_errors_of_a_full_gpu_have_its_exit_status(
    error: RuntimeError, monkeypatch, capsys
) -> None:
    def full(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("chameleon_policy.cli.train.train", full)
    monkeypatch.setattr("sys.argv", ["chameleon", "train", "data", "--out", "run", "--steps", "3"])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == NO_ROOM
    assert "give a smaller --batch" in capsys.readouterr().err


def test_a_process_without_room_on_an_empty_gpu_has_failed(tmp_path: Path) -> None:
    stub = Stub(failing=["--method chameleon"], status=NO_ROOM, says="it is full")
    work, results = schedule(tmp_path, stub)
    assert work.run(SMALL.jobs()) == ["training chameleon-5steps-seed0-clean-plate-shell-game"]
    assert Counter(stub.names())["train chameleon-5steps-seed0-clean-plate-shell-game"] == 2
    assert len(results.rows) == 2 and "it is full" in (tmp_path / "console").read_text()


def test_training_and_evaluation_run_side_by_side(tmp_path: Path) -> None:
    many = Bench(
        suite="camo",
        methods=("chameleon", "no-memory"),
        tasks=("shell-game",),
        seeds=(0, 1, 2),
        steps=5,
        episodes=4,
    )
    stub = Stub(seconds=0.1)
    work, results = schedule(tmp_path, stub, side_by_side=2)
    assert work.run(many.jobs()) == []
    assert stub.most == 2 and len(results.rows) == 6
    kinds = [name.split()[0] for name in stub.names()]
    # before the last training
    assert kinds.index("eval") < len(kinds) - 1 - kinds[::-1].index("train")


def test_a_stop_ends_what_runs_and_begins_nothing(tmp_path: Path) -> None:
    stub = Stub(seconds=30)
    work, results = schedule(tmp_path, stub, side_by_side=1)
    started = time.monotonic()
    work.run(SMALL.jobs(), stopped=lambda: bool(stub.commands))
    assert time.monotonic() - started < 10 and stub.stopped.is_set()
    assert len(stub.commands) == 1 and results.rows == []


def test_processes_are_stopped(tmp_path: Path) -> None:
    processes, ended = Processes(), []
    command = [sys.executable, "-c", "import time; print('begun', flush=True); time.sleep(60)"]
    thread = threading.Thread(target=lambda: ended.append(processes.run(command, tmp_path / "log")))
    thread.start()
    while not (tmp_path / "log").exists() or not (tmp_path / "log").read_text():
        time.sleep(0.02)
    processes.stop()
    thread.join(10)
    assert ended == [-15]
    with pytest.raises(ValueError, match="stopped"):
        processes.run(command, tmp_path / "log")


def test_a_policy_saved_before_the_end_is_not_trained(tmp_path: Path) -> None:
    job = SMALL.jobs()[0]
    run = job.run(tmp_path)
    (run / "policy").mkdir(parents=True)
    (run / "policy/normalizer.json").write_text("{}")
    assert not is_trained(job, tmp_path)
    time.sleep(0.02)
    (run / "metrics.jsonl").write_text(
        '{"step": 5, "loss": 1.0}\n{"step": 5, "held_out_action": 1.0}\n'
    )
    assert not is_trained(job, tmp_path)  # killed before the last export
    time.sleep(0.02)
    (run / "policy/normalizer.json").write_text("{}")
    assert is_trained(job, tmp_path)
    for steps in (4, 6):  # neither a longer nor a shorter training is this one
        assert not is_trained(
            Bench(suite="camo", methods=("chameleon",), tasks=SMALL.tasks, steps=steps).jobs()[0],
            tmp_path,
        )


def test_commands() -> None:
    out = Path("x")
    (job,) = Bench(suite="camo", methods=("chameleon",), seeds=(3,), steps=7).jobs()
    assert job.tasks == (*ALL, "pantry") and job.run(out) == Path("x/small/chameleon-7steps-seed3")
    words = " ".join(job.train_command(out, "cpu", 2))
    assert (
        "--steps 7 --seed 3 --held-out x/held-out/rgb/seed3/clean-plate" in words
        and "--method chameleon" in words
    )
    assert "--no-mirror" not in words and job.log(out) == Path("x/small/chameleon-7steps-seed3.log")
    assert Bench(suite="camo", tell_answer=True).tasks == tuple(ALL), "six cups cannot be told"
    told = Bench(
        suite="camo",
        methods=("no-memory",),
        observation="state",
        tell_answer=True,
        tasks=("seasonings", "clean-plate"),
    ).jobs()
    names = [
        f"no-memory-4000steps-seed0-told-state-{task}" for task in ("clean-plate", "seasonings")
    ]
    assert [each.name for each in told] == names
    words = " ".join(told[0].train_command(out, "cpu", 2))
    assert words.endswith("--tell-answer --no-mirror") and "--recipe camo-state" in words
    assert (
        f"--steps {METHODS['chameleon'].few_steps} "
        "--json x/small/chameleon-7steps-seed3-on-shell-game.json"
        in " ".join(job.eval_command(out, "shell-game", "cpu", 2))
    )
    recordings = Bench(
        suite="camo", methods=("chameleon",), seeds=(0, 1), tasks=("shell-game",), image_size=32
    )
    found = recordings.recordings(out, recordings.jobs())
    assert [(each.episodes, each.seed) for each in found.values()] == [
        (120, 0),
        (60, 1000),
        (120, 1),
        (60, 1001),
    ]


# The command.


def run(monkeypatch: pytest.MonkeyPatch, *words: object) -> None:
    monkeypatch.setattr("sys.argv", ["chameleon", "bench", "camo", *map(str, words)])
    main()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (["--method", "magic"], "there is no method 'magic'; choose one of chameleon"),
        (["--method", "act", "--method", "act"], "each method once"),
        (["--task", "soup"], "there is no task 'soup'"),
        (["--episodes", "0"], "--episodes must be at least 1, got 0"),
        (["--steps", "0"], "--steps must be at least 1, got 0"),
        (["--demonstrations", "0"], "--demonstrations must be at least 1"),
        (["--seed", "1000"], "--seed must be between 0 and 999"),
        (["--image-size", "33"], "image_size must be even"),
        (["--side-by-side", "0"], "--side-by-side must be at least 1"),
        (["--workers", "0"], "--workers must be at least 1"),
        (["--results", "broken.json"], "broken.json is not valid JSON"),
        (["--results", "list.json"], 'no list "rows"'),
        (["--results", "row.json"], "row 0 has no sr"),
        (["--results", "folder.json"], "is a folder"),
        (["--results", "table.md"], "must name a .json file"),
        (["--out", "list.json"], "--out must name a folder"),
        (["--table-only"], "has no rows to draw"),
    ],
)
def test_mistakes(
    wrong: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("broken.json").write_text('{"rows": [')
    Path("list.json").write_text("[]")
    Path("row.json").write_text(json.dumps({"rows": [{name: row()[name] for name in IDENTITY}]}))
    Path("folder.json").mkdir()
    with pytest.raises(SystemExit) as stopped:
        run(monkeypatch, "--results", "new.json", *wrong)
    assert stopped.value.code == 2 and message in plain(capsys.readouterr().err)
    assert not list(tmp_path.rglob("*.parquet")) and not Path("new.md").exists()


@pytest.mark.slow
def test_from_nothing_to_a_table_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(jobs, "HELD_OUT", 3)
    words = "--task shell-game --observation state --preset nano --steps 3 --demonstrations 6"
    words += " --episodes 2 --workers 1"
    command = [*words.split(), "--device", "cpu", "--results", "table.json"]
    run(monkeypatch, *command, "--method", "chameleon", "--method", "no-memory")
    document = json.loads(Path("table.json").read_text())
    assert sorted(each["method"] for each in document["rows"]) == ["chameleon", "no-memory"]
    for each in document["rows"]:
        name = f"{each['method']}-3steps-seed0-state-shell-game-on-shell-game.json"
        scores = json.loads((tmp_path / "runs/bench-camo/nano" / name).read_text())
        assert (
            each["sr"] == scores["result"]["sr"] and len(each["outcomes"]) == each["episodes"] == 2
        )
        right = [
            rollout["manipulation"] and rollout["decision"]
            for rollout in scores["result"]["rollouts"]
        ]
        assert [letter == "s" for letter in each["outcomes"]] == right
        rollouts = sorted(scores["result"]["rollouts"], key=lambda rollout: rollout["seed"])
        assert [each[name].split(" ") for name in ("answers", "choices")] == [
            [str(rollout["z"]) for rollout in rollouts],
            ["-" if rollout["choice"] is None else str(rollout["choice"]) for rollout in rollouts],
        ]
        assert (
            each["trained_on"] == ["shell-game"]
            and each["image_size"] is None
            and each["first_seed"] == 10**9
        )
        assert (
            100_000 < each["parameters"] < 1_000_000
            and 0 < each["minutes"] < 1
            and each["sampling_steps"] == 8
        )
        assert (
            each["executed"] == 4
            and 0 <= each["probe"] <= 1
            and each["chance"] == pytest.approx(1 / 3)
        )
        assert each["duration_s"] > 0 and each["command"].startswith(
            "chameleon bench camo --task shell-game"
        )
    assert "w/o memory" in Path("table.md").read_text() and "w/o memory" in capsys.readouterr().out
    # Again: nothing is left to do.
    monkeypatch.setattr(Processes, "run", lambda *given: pytest.fail("something was run again"))
    run(monkeypatch, *command, "--method", "chameleon", "--method", "no-memory")
    assert json.loads(Path("table.json").read_text()) == document
    # With a row lost, its policy plays again, and is not trained again.
    kept = [each for each in document["rows"] if each["method"] == "chameleon"]
    Path("table.json").write_text(json.dumps({**document, "rows": kept}))
    started: list[str] = []
    monkeypatch.setattr(Processes, "run", lambda self, words, log: started.append(words[3]) or 0)
    run(monkeypatch, *command, "--method", "chameleon", "--method", "no-memory")
    assert started == ["eval"]
    again = {each["method"]: each["outcomes"] for each in Results(Path("table.json")).rows}
    assert again == {each["method"]: each["outcomes"] for each in document["rows"]}
    # A failure is named with the way on, and what is there is drawn.
    monkeypatch.setattr(Processes, "run", lambda self, words, log: 1)
    Path("table.md").unlink()
    with pytest.raises(SystemExit) as stopped:
        run(monkeypatch, *command, "--method", "chameleon", "--seed", "1")
    said = capsys.readouterr()
    assert (
        stopped.value.code == 2
        and "1 failed: training chameleon-3steps-seed1-state-shell-game" in said.err
    )
    assert (
        "the same command continues: chameleon bench camo --task shell-game" in said.err
        and Path("table.md").exists()
    )
