"""Put one bug after another into a copy of the code, and list those that no test finds.

    nice python -m benchmarks.mutations
    nice python -m benchmarks.mutations --only policy/ssm.py evaluate/pool.py

Each bug is one line, as a tired programmer would write it. It is applied to a temporary copy, and
the tests that should find it run there until the first failure; without the bug they must pass.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import tyro

from benchmarks import with_arguments
from chameleon_policy.provenance import write_result

COMMAND = "python -m benchmarks.mutations"
ROOT = Path(__file__).parents[1]
COPIED = ("src", "packages", "tests", "benchmarks", "docs", "pyproject.toml")
PASSED, FAILED = 0, 1
"""Exit statuses of pytest."""


@dataclass(frozen=True)
class Mutation:
    """A bug."""

    file: str
    """Below src/chameleon_policy."""
    old: str
    """Text that occurs once in the file."""
    new: str
    tests: tuple[str, ...]
    """Arguments of pytest."""


EQUATIONS, POLICY = ("tests/test_equations.py",), ("tests/test_policy.py",)
JEPA, SCORING = ("tests/test_control_jepa.py",), ("tests/test_camo_scoring.py",)
EXECUTOR, TRAINING = ("tests/test_executor.py",), ("tests/test_training.py",)
ROLLOUTS = ("tests/test_evaluation.py", "-k", "memory or decisions or refused")
WORKERS = ("tests/test_evaluation.py", "-k", "killed or frozen")
SERVER = ("tests/test_serving_fairness.py",)
RUNS = ("tests/test_training_runs.py", "-k", "killed_and_resumed")
MUTATIONS = (
    # policy
    Mutation("policy/ssm.py", "padded[:, steps:]", "padded[:, :-steps]", ("tests/test_ssm.py",)),
    Mutation(
        "policy/ssm.py", "torch.maximum(rates, least)", "rates + least", ("tests/test_ssm.py",)
    ),
    Mutation("policy/memory.py", "bound[..., -2:, :]", "bound[..., :2, :]", EQUATIONS),
    Mutation("policy/memory.py", "return bound + self.upd", "return traces + self.upd", EQUATIONS),
    Mutation("policy/control_jepa.py", "later >= time", "later > time", JEPA),
    Mutation("policy/control_jepa.py", "1 - self.objective.tar", "self.objective.tar", JEPA),
    Mutation("policy/action_flow.py", "context, steps - step)", "context, steps)", POLICY),
    Mutation(
        "policy/normalizer.py", "* self.half_range + self.middle", "* self.half_range", POLICY
    ),
    Mutation(
        "policy/targets.py", "(weight.sum() * size)", "errors.new_tensor(errors.numel())", POLICY
    ),
    # scoring
    Mutation(
        "camo/scoring.py",
        "sr=Rate.of(right, len(scores))",
        "sr=Rate.of(right, len(scorable))",
        SCORING,
    ),
    Mutation(
        "camo/scoring.py",
        "correct = verdict.choice == z",
        "correct = bool(verdict.choice)",
        SCORING,
    ),
    Mutation("rates.py", "spread / (4 * count)", "spread / (2 * count)", SCORING),
    Mutation(
        "rates.py",
        "range(min(lost, gained) + 1)",
        "range(min(lost, gained))",
        ("tests/test_comparison.py",),
    ),
    # training
    Mutation(
        "train/optimizers.py",
        "1 - min(self.decay, (1 + step) / (10 + step))",
        "1 - self.decay",
        TRAINING,
    ),
    Mutation("train/loop.py", "        self.policy.update_target()\n", "", TRAINING),
    Mutation("train/loop.py", "loss.total * window.weight /", "loss.total /", TRAINING),
    Mutation(
        "train/loop.py",
        "self.policy.parameters(), config.gradient_clip)",
        "self.policy.parameters(), 1e9)",
        TRAINING,
    ),
    Mutation("train/sampling.py", "[seed, ORDER, pass_index]", "[seed, ORDER, 0]", TRAINING),
    Mutation(
        "train/normalization.py",
        "mean - deviation, mean + deviation",
        "mean - deviation, mean",
        TRAINING,
    ),
    Mutation("train/checkpoint.py", "        ema[name].copy_(value)\n", "        pass\n", RUNS),
    # evaluation
    Mutation(
        "evaluate/rollouts.py", "        if tick.decision:\n", "        if False:\n", ROLLOUTS
    ),
    Mutation("evaluate/rollouts.py", "manual_seed(episode.seed)", "manual_seed(0)", ROLLOUTS),
    Mutation("evaluate/rollouts.py", "        if started:\n", "        if False:\n", ROLLOUTS),
    Mutation("evaluate/executor.py", "math.exp(self._growth", "math.exp(-self._growth", EXECUTOR),
    Mutation(
        "evaluate/evaluation.py",
        "    if not training_seeds:\n",
        "    if training_seeds:\n",
        ROLLOUTS,
    ),
    Mutation("evaluate/pool.py", "for turn in range(max(", "for turn in range(1, max(", WORKERS),
    Mutation(
        "evaluate/pool.py",
        "self._silent >= SILENT_BEATS",
        "self._silent > 10 * SILENT_BEATS",
        WORKERS,
    ),
    # a task whose question comes late
    Mutation(
        "camo/tasks/pantry.py",
        "self._asked[decisions - 1] if",
        "self._asked[0] if",
        ("tests/test_pantry.py",),
    ),
    Mutation(
        "camo/tasks/pantry.py",
        "if not in_place and frozenset",
        "if not in_place and not held and frozenset",
        ("tests/test_camo_cheating.py",),
    ),
    # server
    Mutation(
        "serve/sampling.py",
        "[draft.steps - draft.done for draft in drafts]",
        "[draft.steps for draft in drafts]",
        SERVER,
    ),
    Mutation("serve/sampling.py", "SLICE = 4", "SLICE = 400", SERVER),
    Mutation("serve/answers.py", '"not-finite", str(error)', '"refused", str(error)', SERVER),
    # pages
    Mutation(
        "report/pages.py", "autoescape=True", "autoescape=False", ("tests/test_hostile_text.py",)
    ),
)


def main(only: tuple[str, ...] = (), out: Path = Path("runs/mutations.json")) -> None:
    """Try all bugs, or those in some files.

    Args:
        only: Files below src/chameleon_policy.
        out: Result file.
    """
    chosen = [each for each in MUTATIONS if not only or each.file in only]
    if not chosen:
        raise ValueError(f"no bug in {', '.join(only)}; there are some in {files_with_bugs()}")
    outcomes = []
    with copy_of_the_code() as copy:
        for tests in dict.fromkeys(each.tests for each in chosen):
            if run_tests(copy, tests) != PASSED:
                raise RuntimeError(f"pytest {' '.join(tests)} fails without any bug")
        for mutation in chosen:
            outcome = try_out(copy, mutation)
            print(f"{outcome:9} {mutation.file}: {mutation.new.strip() or 'left out'}", flush=True)
            outcomes.append({**asdict(mutation), "outcome": outcome})
    survivors = [each for each in outcomes if each["outcome"] != "found"]
    result = {"bugs": len(outcomes), "survivors": survivors, "outcomes": outcomes}
    write_result(out, result, command=with_arguments(COMMAND), seeds=[])
    print(f"{len(survivors)} of {len(outcomes)} survive: {out}")


def files_with_bugs() -> str:
    """Return the names of the files."""
    return ", ".join(dict.fromkeys(each.file for each in MUTATIONS))


@contextmanager
def copy_of_the_code() -> Iterator[Path]:
    """Yield a temporary copy of everything that the tests need."""
    with tempfile.TemporaryDirectory() as folder:
        ignored = shutil.ignore_patterns("__pycache__", "images", "*.egg-info")
        for name in COPIED:
            source, target = ROOT / name, Path(folder) / name
            if source.is_dir():
                shutil.copytree(source, target, ignore=ignored)
            else:
                shutil.copy(source, target)
        yield Path(folder)


def try_out(copy: Path, mutation: Mutation) -> str:
    """Return `found`, `survives`, or `broken` if the tests could not run."""
    path = copy / "src/chameleon_policy" / mutation.file
    text = path.read_text()
    if text.count(mutation.old) != 1:
        raise ValueError(f"{mutation.old!r} occurs {text.count(mutation.old)} times in {path.name}")
    path.write_text(text.replace(mutation.old, mutation.new))
    try:
        status = run_tests(copy, mutation.tests)
    finally:
        path.write_text(text)
    return {PASSED: "survives", FAILED: "found"}.get(status, "broken")


def run_tests(copy: Path, tests: tuple[str, ...]) -> int:
    """Return the exit status of pytest in the copy."""
    roots = ("src", "packages/chameleon_client/src", "packages/lerobot_policy_chameleon/src", ".")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(str(copy / root) for root in roots),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    return subprocess.run(command, cwd=copy, env=environment, capture_output=True).returncode


if __name__ == "__main__":
    tyro.cli(main)
