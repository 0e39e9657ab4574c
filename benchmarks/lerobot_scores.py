"""Compare `lerobot-eval` with `chameleon eval` on one checkpoint, as a row of a result file.

    python -m benchmarks.lerobot_scores "small, pictures" --own scores.json --version 0.6.1 \\
        --lerobot runs/lerobot-eval/eval_info.json --lerobot-command "lerobot-eval ..." \\
        --out docs/results/lerobot.json

Both must have played the same episodes (`lerobot-eval --seed=0`); the row says which of them
succeeded where. Rows that are in the file already are kept.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tyro

from benchmarks import with_arguments
from chameleon_policy.provenance import write_result
from chameleon_policy.seeds import evaluation_seed

COMMAND = "python -m benchmarks.lerobot_scores"


def row(policy: str, lerobot: Path, own: Path, version: str, command: str) -> dict[str, Any]:
    """Join two evaluations of a policy, episode by episode."""
    (task,) = json.loads(lerobot.read_text())["per_task"]
    theirs = [bool(success) for success in task["metrics"]["successes"]]
    document = json.loads(own.read_text())
    result = document["result"]
    ours = [each["manipulation"] and bool(each["decision"]) for each in result["rollouts"]]
    seeds = [each["seed"] for each in result["rollouts"]]
    if seeds != [evaluation_seed(number) for number in range(len(theirs))]:
        raise ValueError(
            f"{lerobot} has {len(theirs)} episodes from number 0 on, {own} has others; "
            "evaluate the same ones"
        )
    pairs = list(zip(theirs, ours, strict=True))
    return {
        "policy": policy,
        "lerobot": version,
        "task": result["task"],
        "episodes": len(ours),
        "steps": result["steps"],
        "lerobot_sr": sum(theirs) / len(theirs),
        "own_sr": result["sr"],
        "own_msr": result["msr"],
        "own_dsr": result["dsr"],
        "both": pairs.count((True, True)),
        "only_lerobot": pairs.count((True, False)),
        "only_own": pairs.count((False, True)),
        "lerobot_successes": theirs,
        "own_successes": ours,
        "seeds": [seeds[0], seeds[-1]],
        "own_command": document["command"],
        "lerobot_command": command,
        "hardware": document["hardware"],
        "git_revision": document["git_revision"],
    }


def main(
    policy: tyro.conf.Positional[str],
    lerobot: Path,
    own: Path,
    version: str,
    lerobot_command: str,
    training: str = "",
    out: Path = Path("runs/lerobot.json"),
) -> None:
    """Add a row to the file.

    Args:
        policy: What the row calls it.
        lerobot: eval_info.json of lerobot-eval.
        own: What chameleon eval --json wrote for the same checkpoint and episodes.
        version: LeRobot's.
        lerobot_command: What lerobot-eval was called with.
        training: How it was trained: the command, and how long it took.
        out: File for all rows.
    """
    before = json.loads(out.read_text())["result"]["rows"] if out.exists() else []
    new = {**row(policy, lerobot, own, version, lerobot_command), "training": training}
    kept = [each for each in before if (each["policy"], each["task"]) != (policy, new["task"])]
    command = with_arguments(COMMAND)
    write_result(out, {"rows": [*kept, new]}, command=command, seeds=[0])


if __name__ == "__main__":
    tyro.cli(main, prog=COMMAND)
