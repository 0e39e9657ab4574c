"""Control a robot at a fixed rate from a policy server."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import tyro

from chameleon_client import Client
from chameleon_policy.cli.options import DEFAULT_DIALS, UNSET, FlatDials, typed
from chameleon_policy.console import Terminal
from chameleon_policy.exit_codes import INTERRUPTED
from chameleon_policy.provenance import write_result
from chameleon_policy.report.tables import evaluation_table
from chameleon_policy.robot.loop_table import loop_table
from chameleon_policy.robot.run import RobotOptions, loop_settings, run_robot
from chameleon_policy.robot.settings import LoopOptions
from chameleon_policy.serve.authentication import find_token

DEFAULT_ROBOT, DEFAULT_LOOP = RobotOptions(), LoopOptions()


def main(
    server: str,
    robot: Annotated[RobotOptions, tyro.conf.OmitArgPrefixes] = DEFAULT_ROBOT,
    rate: Annotated[float | None, UNSET] = None,
    executed: Annotated[int | None, UNSET] = None,
    loop: Annotated[LoopOptions, tyro.conf.OmitArgPrefixes] = DEFAULT_LOOP,
    record: Annotated[Path | None, UNSET] = None,
    json_file: Annotated[Path | None, tyro.conf.arg(name="json"), UNSET] = None,
    token_file: Annotated[Path | None, UNSET] = None,
    tls_ca: Annotated[Path | None, UNSET] = None,
    dials: FlatDials = DEFAULT_DIALS,
) -> None:
    """Control a robot at a fixed rate from a policy server, whose memory gets every tick.

    The robot is stopped when the connection is lost, when the server falls behind, and on Ctrl-C.

    Args:
        server: Where `chameleon serve` listens, like ws://127.0.0.1:8765.
        robot: The robot, its task and its episodes.
        rate: Ticks per second, as the policy's demonstrations were recorded (default for camo-sim:
            7.5, its own time; it may be run faster).
        executed: Ticks from one chunk to the next (default: the policy's own number, half of a
            chunk).
        loop: How chunks are carried out, and when the robot is stopped.
        record: Folder for observations and actions, as a LeRobot dataset (default: none). If the
            process is killed, the same command goes on.
        json_file: File for delays and, of a simulation, scores (default: none).
        token_file: File with the server's token (default: the variable CHAMELEON_TOKEN).
        tls_ca: Certificate (PEM) of the authority of a server at wss://, or its own if it is
            self-signed (default: the authorities that this machine trusts).
        dials: Appearance and difficulty of camo-sim.
    """
    with Client(server, token=find_token(token_file), tls_ca=tls_ca) as client:
        metadata = client.metadata
        settings = loop_settings(metadata, robot.robot, loop, rate, executed)
        done = run_robot(client, robot, settings, dials=dials.settings, record=record)
    if done.evaluation is not None:
        Terminal().print(evaluation_table(done.evaluation, metadata.policy))
    result = done.as_dict()
    title = f"{robot.robot} at {settings.rate:g} Hz, {metadata.policy} on {server}"
    Terminal().print(loop_table(result["loop"], title))
    if json_file is not None:
        given = {
            "robot": robot.robot,
            "policy": metadata.policy,
            "steps": settings.steps or metadata.sampling_steps,
        }
        first = robot.first_seed + done.found
        seeds = list(range(first, first + len(done.timings)))
        result = {**asdict(settings), **given, **result}
        write_result(json_file, result, command=typed(), seeds=seeds)
        print(f"Delays and scores: {json_file}")
    if done.broken_off:
        print(f"{done.broken_off} episodes were broken off by a lost connection", file=sys.stderr)
    if done.interrupted:
        print(f"chameleon: {done.stopped}", file=sys.stderr)
        sys.exit(INTERRUPTED)
    if done.stopped is not None:
        raise ConnectionError(done.stopped)
