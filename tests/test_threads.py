"""Torch's threads sleep while they wait, in every command, unless the user says otherwise."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from chameleon_policy.cli import COMMANDS
from chameleon_policy.threads import VARIABLES

WATCH = """
import os, sys
from chameleon_policy.cli import COMMANDS, main

class TorchIsImported(BaseException):
    pass

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            raise TorchIsImported

sys.meta_path.insert(0, Watch())
given, sys.stdout = dict(os.environ), open(os.devnull, "w")
for command in COMMANDS:
    os.environ.clear()
    os.environ.update(given)
    sys.argv = ["chameleon", command, "--help"]
    try:
        main()
    except (SystemExit, TorchIsImported):
        print(command, os.environ.get("OMP_WAIT_POLICY"), file=sys.__stdout__)
"""
"""Runs every command until it asks for torch, and prints the policy at that moment."""


def surroundings(**given: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in VARIABLES} | given


def policies_when_torch_is_imported(**given: str) -> dict[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", WATCH],
        env=surroundings(**given),
        capture_output=True,
        text=True,
        check=True,
    )
    return dict(line.split() for line in done.stdout.splitlines())


def test_threads_wait_asleep_in_every_command_before_torch_is_imported() -> None:
    assert policies_when_torch_is_imported() == dict.fromkeys(COMMANDS, "PASSIVE")


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE"),
        ({"GOMP_SPINCOUNT": "1000"}, "None"),
        ({"KMP_BLOCKTIME": "10"}, "None"),
    ],
)
def test_what_the_user_set_is_kept(given: dict[str, str], kept: str) -> None:
    assert policies_when_torch_is_imported(**given) == dict.fromkeys(COMMANDS, kept)


def test_the_runtime_of_torch_reads_it() -> None:
    """OpenMP itself says, when it is loaded, how long its threads spin."""
    done = subprocess.run(
        [sys.executable, "-m", "chameleon_policy.cli", "params", "nano"],
        env=surroundings(OMP_DISPLAY_ENV="verbose"),
        capture_output=True,
        text=True,
        check=True,
    )
    spins = re.findall(r"GOMP_SPINCOUNT = '(\d+)'", done.stderr)
    if not spins:
        pytest.skip("torch was built with another OpenMP than GNU's, which alone says this")
    assert set(spins) == {"0"}
