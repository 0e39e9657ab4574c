"""Code of the documents runs, commands parse, links lead somewhere, results have a provenance."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from chameleon_policy import cli
from test_structure import ROOMS

ROOT = Path(__file__).parents[1]
README, TUTORIAL = ROOT / "README.md", ROOT / "docs/tutorial.md"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("docs/log/*.md")])
HISTORY = [ROOT / "CHANGELOG.md", *ROOT.glob("docs/log/*.md")]
"""Pages that may name files of their time."""
RUNNABLE = [
    README,
    *(ROOT / f"docs/{name}.md" for name in ("architecture", "camo", "performance", "probes")),
]
"""Pages whose Python runs here; those of exports and of the server run in tests of their rooms."""


def blocks(page: Path, language: str) -> list[str]:
    """Return the code blocks of a page in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", RUNNABLE, ids=name_of)
def test_code_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, namespace = blocks(page, "python"), {}
    assert code
    for block in code:
        exec(compile(block, page.name, "exec"), namespace)


def commands(page: Path) -> list[list[str]]:
    """Return the `chameleon` commands of a page, split into words."""
    lines = "".join(blocks(page, "bash")).replace("\\\n", " ").splitlines()
    words = (shlex.split(line, comments=True) for line in lines)
    return [line[1:] for line in words if line[:1] == ["chameleon"]]


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=name_of)
def test_commands_have_options_that_exist(page: Path) -> None:
    for name, *arguments in commands(page):
        cli.prepared(name, arguments)


@pytest.mark.slow
def test_the_tutorial_runs_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    found = re.findall(r"```(bash|python)\n(.*?)```", TUTORIAL.read_text(), re.DOTALL)
    assert len(found) >= 7
    for language, code in found:
        program = ["bash", "-ec", code] if language == "bash" else [sys.executable, "-c", code]
        result = subprocess.run(
            program, capture_output=True, text=True, env=environment, timeout=600
        )
        assert result.returncode == 0, f"{code}\n{result.stderr}"
    assert (tmp_path / "scores.json").exists()
    assert list((tmp_path / "failures").glob("*.mp4"))


def test_the_tutorials_data_and_training_loop_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run its first Python block, which writes a dataset, and its last, which trains on it."""
    monkeypatch.chdir(tmp_path)
    first, *_, last = blocks(TUTORIAL, "python")
    for code in (first, last.replace("steps=20", "steps=2")):
        exec(compile(code, TUTORIAL.name, "exec"), {"__name__": "__main__"})
    assert (tmp_path / "runs/cloning").is_dir()


def functions_with_arguments(folder: str) -> Iterator[tuple[str, ast.FunctionDef, str]]:
    """Yield name, code and the section "Args:" of every function that has one."""
    for path in (ROOT / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                _, found, section = (ast.get_docstring(node) or "").partition("Args:\n")
                if found:
                    yield f"{path.relative_to(ROOT)}: {node.name}", node, section


@pytest.mark.parametrize("folder", ["src", "benchmarks"])
def test_every_parameter_has_its_line_below_args(folder: str) -> None:
    """Only there does `--help` find the explanation of an option."""
    found = list(functions_with_arguments(folder))
    assert found
    for name, function, section in found:
        parameters = {each.arg for each in (*function.args.args, *function.args.kwonlyargs)}
        listed = set(re.findall(r"^    (\w+): ", section, re.MULTILINE))
        assert listed == parameters - {"self"}, name


def anchors(page: Path) -> set[str]:
    """Return the anchors that a renderer makes of the headings of a page."""
    headings = re.findall(r"^#+ (.*)", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        if link.startswith("http"):
            continue
        target, _, anchor = link.partition("#")
        path = page.parent / target if target else page
        assert path.exists(), link
        assert not anchor or anchor in anchors(path), link


@pytest.mark.parametrize("page", [page for page in PAGES if page not in HISTORY], ids=name_of)
def test_files_that_are_named_exist(page: Path) -> None:
    package = ROOT / "src/chameleon_policy"
    for name in re.findall(r"`([\w./-]+/[\w-]+\.(?:py|md|json|toml|js))`", page.read_text()):
        made_by_user = name.startswith(("runs/", "data/", "camo/episodes", "meta/"))
        if not made_by_user and not name.startswith("/"):
            assert any((folder / name).exists() for folder in (ROOT, package, page.parent)), name


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_no_heading_twice(page: Path) -> None:
    headings = re.findall(r"^## .*", page.read_text(), re.MULTILINE)
    assert len(set(headings)) == len(headings)


def test_the_readme_is_short() -> None:
    text = README.read_text()
    assert len(text.split()) <= 900
    assert text.count("<!-- table: ") == len(re.findall(r"^\|---", text, re.MULTILINE)) == 2


def test_every_extra_and_every_room_has_a_row() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    install = (ROOT / "docs/install.md").read_text()
    assert all(f"`{extra}`" in install for extra in extras)
    architecture = (ROOT / "docs/architecture.md").read_text()
    first_cells = "".join(re.findall(r"^\| `[^|]*\|", architecture, re.MULTILINE))
    named = re.findall(r"`(\w+)`", first_cells)
    assert [name for name in named if name in ROOMS] == list(ROOMS)


def test_every_log_entry_says_what_was_decided() -> None:
    entries = sorted((ROOT / "docs/log").glob("2*.md"), reverse=True)
    index = (ROOT / "docs/log/README.md").read_text()
    for entry in entries:
        assert re.match(r"# .*\n\n- \*\*Tried\*\*", entry.read_text()), entry.name
        assert re.search(r"^- \*\*Came out\*\*", entry.read_text(), re.MULTILINE), entry.name
        assert re.search(r"^- \*\*Decided\*\*", entry.read_text(), re.MULTILINE), entry.name
    dates = re.findall(r"\]\((2\d{3}-\d\d-\d\d)[\w-]*\.md\)", index)
    assert len(dates) == len(entries) and dates == sorted(dates, reverse=True)


def test_every_result_says_where_it_came_from() -> None:
    files = list((ROOT / "docs/results").glob("*.json"))
    assert files
    provenance = {"command", "seeds", "hardware", "software", "git_revision", "duration_s"}
    for path in files:
        document = json.loads(path.read_text())
        content = "rows" if "rows" in document else "result"
        assert set(document) == {*provenance, content}, path.name
        for each in (document, *document.get("rows", ())):
            # rows that were made one by one have a revision of their own
            revision = each.get("git_revision", document["git_revision"])
            assert re.fullmatch(r"[0-9a-f]{7,40}", revision), path.name
