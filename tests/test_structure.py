"""Imports point one way, and the core stays light."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import chameleon_policy

PACKAGE = Path(chameleon_policy.__file__).parent

ROOMS = (
    "exit_codes",
    "locking",
    "threads",
    "json_files",
    "writing",
    "console",
    "device",
    "provenance",
    "rates",
    "seeds",
    "data",
    "suite",
    "recorder",
    "policy",
    "kernels",
    "baselines",
    "camo",
    "train",
    "evaluate",
    "probes",
    "report",
    "serve",
    "robot",
    "export",
    "experiments",
    "cli",
)
"""Modules and packages in import order: each may import only those before it."""


def imported(path: Path, code: str | None = None) -> Iterator[str]:
    """Yield the full names of a file's imports, also inside functions and for type checkers."""
    package = path.relative_to(PACKAGE.parent).with_suffix("").parts[:-1]
    for node in ast.walk(ast.parse(path.read_text() if code is None else code)):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = (
                [*package[: len(package) + 1 - node.level], node.module]
                if node.level
                else [node.module]
            )
            yield from (".".join(filter(None, [*module, name.name])) for name in node.names)


def test_imports_point_one_way() -> None:
    inside = {
        path.stem if path.parent == PACKAGE else path.relative_to(PACKAGE).parts[0]
        for path in PACKAGE.rglob("*.py")
    }
    assert inside - {"__init__"} == set(ROOMS)
    wrong = []
    for path in PACKAGE.rglob("*.py"):
        room = path.relative_to(PACKAGE).with_suffix("").parts[0]
        for name in imported(path):
            top, _, rest = name.partition(".")
            other = rest.partition(".")[0]
            if room == "__init__" or top != "chameleon_policy" or other in (room, "__version__"):
                continue
            if other not in ROOMS or ROOMS.index(other) > ROOMS.index(room):
                wrong.append(f"{path.relative_to(PACKAGE)} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_all_kinds_of_imports_are_read() -> None:
    code = "import a.b\nfrom c import d\n"
    code += "def f():\n    from .e import g\n    from ..h import i\n    from . import j\n"
    path = PACKAGE / "camo" / "tasks" / "somewhere.py"
    found = set(imported(path, code))
    inside = "chameleon_policy.camo"
    assert found == {"a.b", "c.d", f"{inside}.tasks.e.g", f"{inside}.h.i", f"{inside}.tasks.j"}


def test_times_are_measured_with_a_clock_that_never_jumps() -> None:
    """Waits, limits and durations use `monotonic` or `perf_counter`: nobody can set those."""
    clocks = {("time", "time"), ("datetime", "now"), ("datetime", "utcnow")}
    for path in [*PACKAGE.rglob("*.py"), *(PACKAGE.parents[1] / "packages").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                told = path.name == "audit.py"  # whose lines say when something happened
                clock = (node.value.id, node.attr)
                assert told or clock not in clocks, f"{path}:{node.lineno}"
            assert not (
                isinstance(node, ast.ImportFrom)
                and node.module == "time"
                and "time" in {name.name for name in node.names}
            ), path


def files_of(room: str) -> list[Path]:
    return [PACKAGE / f"{room}.py", *(PACKAGE / room).rglob("*.py")]


def rooms_imported_by(path: Path) -> set[str]:
    names = (name.split(".") for name in imported(path))
    return {name[1] for name in names if name[0] == "chameleon_policy" and len(name) > 1}


def test_benchmark_does_not_need_torch() -> None:
    for room in ("camo", "data", "seeds", "suite", "recorder"):
        for path in filter(Path.is_file, files_of(room)):
            assert not rooms_imported_by(path) & {"policy", "device", "provenance"}, path
            assert not any(name.split(".")[0] == "torch" for name in imported(path)), path


def test_recording_evaluation_and_experiments_do_not_know_the_suites() -> None:
    """Check that a new suite is a line in `suite.py`; only the demo plays Camo by name."""
    for room in ("suite", "recorder", "evaluate", "experiments"):
        for path in filter(Path.is_file, files_of(room)):
            known = path.parts[-2:] == ("experiments", "demo.py")
            assert known or "camo" not in rooms_imported_by(path), path


@pytest.mark.parametrize(
    ("code", "unwanted"),
    [
        (
            "from chameleon_policy import ChameleonPolicy",
            {"transformers", "huggingface_hub", "mujoco", "gymnasium", "av"},
        ),
        ("import chameleon_policy.camo.recording", {"torch", "transformers"}),
        ("import chameleon_policy.train.training", {"mujoco", "gymnasium", "av", "transformers"}),
        ("import chameleon_policy.evaluate.executor", {"torch", "mujoco", "gymnasium"}),
        ("import chameleon_policy.cli", {"torch", "mujoco", "av"}),
    ],
)
def test_imports_load_no_unused_packages(code: str, unwanted: set[str]) -> None:
    code = f"import sys; {code}; print(sorted({unwanted} & sys.modules.keys()))"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


MODEL = ("event_tokens", "ssm", "memory", "control_jepa", "action_flow", "chameleon")
READING_PATH = ("observation", *MODEL)
BUILDING_BLOCKS = ("visual", "attention")


def test_reading_path_of_the_model_is_named_and_short() -> None:
    room = PACKAGE / "policy"
    assert " -> ".join(READING_PATH) in (room / "__init__.py").read_text()
    files = [room / f"{name}.py" for name in (*MODEL, *BUILDING_BLOCKS)]
    assert sum(len(path.read_text().splitlines()) for path in files) < 1200


def test_model_does_not_mention_kernels() -> None:
    for path in (PACKAGE / "policy").rglob("*.py"):
        assert not re.search(r"\bkernels\b|triton|__class__", path.read_text()), path


def test_package_exports_the_names_of_the_policy() -> None:
    assert chameleon_policy.__all__ == [*chameleon_policy.policy.__all__, "FastControl", "fuse"]
    assert all(getattr(chameleon_policy, name) is not None for name in chameleon_policy.__all__)
    assert chameleon_policy.ChameleonPolicy is chameleon_policy.policy.ChameleonPolicy
    with pytest.raises(AttributeError, match="no attribute 'Chamaeleon'"):
        _ = chameleon_policy.Chamaeleon
